"""The first process of a node in its namespaces: names the host, runs slurmd, reaps what jobs leave, ends with slurmd.

Arguments: the node's name, a file for /etc/hosts, the command of slurmd.
"""

import os
import socket
import subprocess
import sys


def main(name: str, hosts: str, command: list[str]) -> int:
    socket.sethostname(name)
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    slurmd = os.spawnvp(os.P_NOWAIT, command[0], command)
    while True:
        pid, status = os.wait()
        if pid == slurmd:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
