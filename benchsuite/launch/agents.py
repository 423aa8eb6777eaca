"""Trials on agents: processes on one or more nodes, each of which forks its node's ranks and watches them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import IO, Any, NoReturn, Self

from benchsuite.contract.errors import UserError
from benchsuite.contract.outcome import Outcome, RankExit
from benchsuite.contract.rank_samples import Progress, RankIdentity, read_progress
from benchsuite.contract.trial_spec import TrialSpec
from benchsuite.host.environment import facts_of_host
from benchsuite.host.machine import Machine, this_machine
from benchsuite.launch.allocation import Task
from benchsuite.launch.answers import (
    START_TIMEOUT_S,
    Hello,
    await_results,
    clock_offset_s,
    ended,
    first_words,
    fits,
    pong,
    went_well,
)
from benchsuite.launch.launcher import CannotStart
from benchsuite.launch.link import Link
from benchsuite.launch.node import about_this_node, node_name, package_path
from benchsuite.launch.placement import Agent, Share, about_nodes, agent_of, cores_of, cores_per_rank, shares
from benchsuite.launch.registry import LAUNCHERS
from benchsuite.launch.rendezvous import VARIABLE, Rendezvous, shared_networks, write_invitation
from benchsuite.results.store.place import folder_in, written_to
from benchsuite.results.store.store import ResultsStore

CLEANUP_GRACE_S = 30.0
"""How long after a trial's time-out agents may take to end their processes."""
NODES_GRACE_S = 0.5
"""How long ranks of other agents, after those of one have failed, may take to fail of themselves and say why."""
REFRESH_S = 0.2
LEAVE_S = 60.0
"""How long tasks that have not come yet are waited for, to be told that there is nothing to do."""
TRIAL = "benchsuite.trial.rank:run_rank"
ZYGOTE = (sys.executable, "-P", "-m", "benchsuite.launch.zygote")
MEETINGS = Path("work") / "meetings"


@dataclass(frozen=True)
class AgentConfig:
    """How a launcher comes by its agents."""

    name: str = "local"
    num_agents: int = 1
    starter: tuple[str, ...] = ()
    """What starts the agents' command on every node; empty: this process starts one agent here."""
    ranks_per_node: int | None = None
    """What the user asked the scheduler for; None: as many as a node has room for."""
    words: str = ""
    """Where the agents are, for people."""
    num_nodes: int = 1
    without: tuple[str, ...] = ()
    """Beginnings of environment variables that would change what the starter gives to an agent."""
    task: Task | None = None
    """The task that this process is, where each task of a job is to be an agent."""
    on_some: Callable[[Sequence[str]], tuple[str, ...]] | None = None
    """The starter on some of the nodes, by name; None where it takes all."""

    @property
    def only_here(self) -> bool:
        """Whether there is one agent, of this process's own."""
        return not self.starter and self.task is None


def agents_environment(where: str | None, without: tuple[str, ...] = ()) -> dict[str, str]:
    """What agents start with, and where their launcher is: an invitation, or the file that holds it.

    Variables that begin with one of `without` are left out.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    found = {"GOMP_SPINCOUNT": "1000", **kept, "PYTHONUNBUFFERED": "1", "PYTHONPATH": package_path()}
    return found | ({VARIABLE: where} if where else {})


class AgentLauncher:
    """Starts its agents when first needed, and new ones should any die; where none can be had, the node is lost.

    `task` names what a rank runs: a function like `benchsuite.trial.rank.run_rank`.
    """

    def __init__(self, agent_config: AgentConfig, task: str = TRIAL) -> None:
        self.agent_config = agent_config
        self.task = task
        self.lost: dict[str, str] = {}
        """Nodes that trials can no more be run on, with when their agents were missed."""
        self.on_lost: Callable[[str], None] = lambda words: None
        """Called with words for people when nodes are lost."""
        self._missed: dict[str, str] = {}
        """Nodes whose agents were gone when last asked, with when."""
        self._ended: set[int] = set()
        """Tasks of the job that have ended, and will not come again."""
        self._crews: Counter[str] = Counter()
        """Agents that each node has, as they came first; those of lost nodes left out."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._rendezvous: Rendezvous | None = None
        self._place: Path | None = None
        self._own: Link | None = None
        self._agents: list[Agent] = []
        self._ports: dict[int, int] = {}
        self._was_ready = False

    @property
    def num_nodes(self) -> int:
        """Nodes that trials may be spread over."""
        return self.agent_config.num_nodes

    @property
    def machine(self) -> Machine:
        """What each node has, the least of all; starts agents of other nodes.

        Raises:
            CannotStart: they cannot be started.
        """
        if self.agent_config.only_here:
            return this_machine()
        devices = self.devices_by_node()
        nodes: dict[str, list[Agent]] = {}
        for agent in self._agents:
            nodes.setdefault(agent.node, []).append(agent)
        memory_bytes = min((one.facts["memory_bytes"] for one in self._agents if one.facts), default=None)
        cores, asked = min(cores_of(node) for node in nodes.values()), self.agent_config.ranks_per_node
        return Machine(cores, min(devices.values()), len(nodes), ranks_per_node=asked, memory_bytes=memory_bytes)

    def devices_by_node(self) -> dict[str, int]:
        """How many CUDA devices each node has; starts the agents.

        Raises:
            CannotStart: they cannot be started.
        """
        self._ensure_ready()
        found: dict[str, set[str]] = {}
        for agent in sorted(self._agents, key=lambda agent: agent.task):
            found.setdefault(agent.node, set()).update(agent.devices)
        return {node: len(names) for node, names in found.items()}

    def is_here(self) -> bool:
        """Whether ranks run on this process's node, too."""
        return self.agent_config.only_here or any(agent.node == node_name() for agent in self._agents)

    def node_names(self) -> list[str]:
        """The nodes, by name; starts the agents.

        Raises:
            CannotStart: they cannot be started.
        """
        self._ensure_ready()
        return list(dict.fromkeys(agent.node for agent in sorted(self._agents, key=lambda agent: agent.task)))

    @property
    def words(self) -> str:
        """Where its agents are."""
        return self.agent_config.words

    def meet_in(self, store: Path) -> None:
        """Where each task of a job is to be an agent: become one, and not return, in all but the first.

        The first leaves word for the others in the store, which all see.

        Raises:
            StoreError: the store cannot be written.
        """
        mine = self.agent_config.task
        if mine is None:
            return
        self._place = (store / MEETINGS / f"{mine.job}.json").absolute()
        if mine.rank > 0:
            os.execve(ZYGOTE[0], list(ZYGOTE), agents_environment(str(self._place)))
        ResultsStore(store).check_writable()
        with written_to(store):
            folder_in(store, *MEETINGS.parts)
        self.start()  # now: the others wait for it, however long this process plans

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the agents without waiting for them."""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the agents)
        config, passed, where = self.agent_config, [], None
        command = [*(config.on_some([*self._crews]) if self.lost and config.on_some else config.starter), *ZYGOTE]
        if self.agent_config.only_here:
            ours, theirs = socket.socketpair()
            self._own = Link(ours)
            command.append(str(theirs.fileno()))
            passed.append(theirs)
        else:
            self._rendezvous = Rendezvous()
            where = self._rendezvous.invitation.text()
            if self._place is not None:
                write_invitation(self._place, self._rendezvous.invitation)
                where = str(self._place)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env=agents_environment(where, self.agent_config.without),
            pass_fds=[link.fileno() for link in passed],
        )
        for link in passed:
            link.close()

    def run(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, on_progress: Callable[[Progress], None]
    ) -> Outcome:
        """Run a trial's ranks; an interrupt ends them all before it is passed on."""
        try:
            self._ensure_ready()
            places = self._places(spec)
            if gone := [place.agent for place in places if pong(place.agent.link) is None]:  # since the last trial
                self._miss(gone)
                self.close(again=True)
                self._ensure_ready()
                places = self._places(spec)
            for request, place in zip(self._requests(spec, dataset, folder, places), places, strict=True):
                place.agent.link.send(request)
            replies = self._await_replies(spec, folder, places, on_progress)
        except UserError:
            raise
        except TimeoutError:
            self.close(again=True)
            return Outcome(timed_out=True)
        except BaseException:
            self.close(again=True)
            raise
        return self._outcome(folder, places, replies)

    def _places(self, spec: TrialSpec) -> list[Share]:
        return shares(spec, self._agents, self.agent_config.ranks_per_node, self.lost)

    def _miss(self, gone: Sequence[Agent]) -> None:
        """Note whose agents are gone: if they do not come again, their nodes are lost."""
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        self._missed = {agent.node: now for agent in gone}
        if self.agent_config.task is not None:
            own = self.agent_config.task.rank  # whose agent this process itself starts
            self._ended |= {agent.task for agent in gone if agent.link.has_ended} - {own}

    @property
    def _num_wanted(self) -> int:
        """Agents that may come."""
        if not self._crews:
            return self.agent_config.num_agents
        return self._crews.total() - len(self._ended)

    def _ensure_ready(self) -> None:
        if self._process is not None and self._process.poll() is not None and not self._agents:
            self.close(again=True)
        try:
            self._meet()
        except CannotStart:
            left = {*self._crews} - {*self._missed}
            if self.agent_config.on_some is None or not self._missed or not left:
                raise
            self._lose({*self._missed} & {*self._crews})
            self._meet()

    def _meet(self) -> None:
        """Have the agents of all nodes that are not lost."""
        if self._process is None:
            self.start()
        if self._agents:
            return
        if self._own is not None:
            self._take([(self._own, first_words(self._own))])
        else:
            assert self._rendezvous is not None
            self._take(self._rendezvous.gather(self._num_wanted, START_TIMEOUT_S, self._check_running))

    def _check_running(self) -> None:
        """Agents that do not come because what starts them has ended are not waited for."""
        assert self._process is not None
        if self._process.poll() is not None:
            self._cannot_start(self._last_words())

    def _take(self, found: Sequence[tuple[Link, dict[str, Any] | None]]) -> None:
        """Keep the agents that have come, if they are all and the same."""
        heard = [(link, hello) for link, hello in found if hello is not None and fits(hello, Hello)]
        links = [link for link, _ in heard]
        self._agents = [agent_of(link, hello, self._address_of(link, links)) for link, hello in heard]
        self._ports = {link.fileno(): hello["port"] for link, hello in heard}
        wanted, crews = self._crews.total() or self.agent_config.num_agents, Counter(each.node for each in self._agents)
        if len(heard) < wanted and not self._goes_on(crews):
            missing = f"{len(heard)} of {wanted} agents have come: " if wanted > 1 else ""
            self._cannot_start(missing + self._last_words())
        if not self.agent_config.only_here:
            self._check_same_code([hello for _, hello in heard])
        self._crews, self._missed, self._ended = self._crews or crews, {}, set()
        self._was_ready = True

    def _goes_on(self, came: Counter[str]) -> bool:
        """Go on without nodes whose tasks have not come again, all of them; whether that can be."""
        lacking = {node for node, count in self._crews.items() if came[node] < count}
        if self.agent_config.task is None or not self._was_ready or node_name() in lacking:
            return False
        for agent in [agent for agent in self._agents if agent.node in lacking]:
            agent.link.send({"quit": True})
            agent.link.close()
            self._agents.remove(agent)
        self._lose(lacking)
        return True

    def _lose(self, nodes: Collection[str]) -> None:
        """Count on nodes no more."""
        now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
        for node in sorted(nodes):
            del self._crews[node]
            self.lost[node] = self._missed.get(node, now)
            left = f"{len(self._crews)} of {len(self._crews) + len(self.lost)} nodes"
            self.on_lost(f"node {node} was lost at {self.lost[node]}: going on with {left}: {', '.join(self._crews)}")

    def _check_same_code(self, hellos: Sequence[dict[str, Any]]) -> None:
        own = about_this_node(elsewhere=True)
        for hello in hellos:
            if (hello["version"], hello["code"]) != (own["version"], own["code"]):
                theirs = f"benchsuite {hello['version']} (source {hello['code']}) from {hello['from']}"
                ours = f"{own['version']} (source {own['code']}) from {own['from']}"
                self._cannot_start(f"node {hello['node']} runs {theirs}, this process {ours}: install one of them")

    def _cannot_start(self, why: str) -> NoReturn:
        self.close(again=True)
        error = CannotStart(f"ranks cannot be started: {why}")
        error.lasting = not self._was_ready and not self.agent_config.only_here
        raise error

    def _address_of(self, link: Link, links: Sequence[Link]) -> str | None:
        """An agent's address as other nodes may use it: of one on this node, that by which others come here."""
        if self._own is not None:
            return None
        if link.own != link.peer:
            return link.peer
        return next((other.own for other in links if other.own != other.peer), link.peer)

    def _requests(
        self, spec: TrialSpec, dataset: Path | None, folder: Path, places: Sequence[Share]
    ) -> list[dict[str, Any]]:
        """What each agent is asked to do. Moments are told by the agent's own clock."""
        first = places[0].agent
        nodes = {place.agent.node: place.agent.networks for place in places}
        several = len(nodes) > 1
        networks = shared_networks([*nodes.values()]) if several else []
        launched_s, here = time.perf_counter(), node_name()
        found, machines, cores = [], set[str](), cores_per_rank(places)
        for place in places:
            offset_s = clock_offset_s(place.agent)
            identity = RankIdentity(
                rank=place.rank,
                world_size=spec.ranks,
                local_rank=place.local_rank,
                folder=folder.absolute(),
                launched_s=launched_s + offset_s,
                master_port=self._ports[first.link.fileno()],
                master_addr=first.address if several and first.address else "127.0.0.1",
                address=place.agent.address if several else None,
                device_index=place.device,
                clock_offset_s=offset_s,
                cores_per_rank=cores[place.agent.node],
                watches_machine=place.agent.boot_id not in machines,
            )
            machines.add(place.agent.boot_id)
            found.append(
                {
                    "task": self.task,
                    "spec": spec.model_dump_json(),
                    "dataset": str(dataset.absolute()) if dataset else None,
                    "num_ranks": place.num_ranks,
                    "networks": networks,
                    "first": asdict(identity) | {"folder": str(identity.folder)},
                    "timeout_s": spec.measure.timeout_s,
                    "devices": place.devices(spec),
                    "look": place.local_rank == 0 and place.agent.node != here,
                }
            )
        return found

    def _await_replies(
        self, spec: TrialSpec, folder: Path, places: Sequence[Share], on_progress: Callable[[Progress], None]
    ) -> dict[int, dict[str, Any] | None]:
        """What each agent says of its ranks' end, by its place; None of an agent that is gone.

        Raises:
            TimeoutError: one has not ended the trial in time.
        """
        deadline, end_at = time.monotonic() + spec.measure.timeout_s + CLEANUP_GRACE_S, float("inf")
        replies: dict[int, dict[str, Any] | None] = {}
        with DefaultSelector() as selector:
            for number, place in enumerate(places):
                selector.register(place.agent.link, EVENT_READ, number)
            while len(replies) < len(places):
                for key, _ in selector.select(REFRESH_S):
                    selector.unregister(key.fileobj)
                    reply = replies[key.data] = ended(
                        places[key.data].agent.link, max(0.0, deadline - time.monotonic())
                    )
                    if not went_well(reply, places[key.data]):
                        end_at = min(end_at, time.monotonic() + NODES_GRACE_S)
                if time.monotonic() > end_at:
                    for number in set(range(len(places))) - set(replies):
                        places[number].agent.link.send({"end": True})
                    end_at = float("inf")
                if time.monotonic() > deadline:
                    raise TimeoutError
                progress = read_progress(folder, 0)
                if progress is not None:
                    on_progress(progress)
        return replies

    def _outcome(self, folder: Path, places: Sequence[Share], replies: dict[int, dict[str, Any] | None]) -> Outcome:
        gone = [places[number].agent for number, reply in replies.items() if reply is None]
        if gone:
            reason = self._why_gone(gone[0])
            self._miss(gone)
            self.close(again=True)
            return Outcome(launcher_error=reason)
        found = {number: reply for number, reply in replies.items() if reply is not None}
        if wrong := next((reply["error"] for reply in found.values() if "error" in reply), None):
            return Outcome(launcher_error=wrong)
        for number, reply in found.items():
            self._ports[places[number].agent.link.fileno()] = reply["port"]
        exits = [RankExit(**one) for reply in found.values() for one in reply["exits"]]
        if not self.agent_config.only_here:
            await_results(folder, [one.rank for one in exits if one.code is not None])
        facts = {} if self.is_here() else dict(places[0].agent.facts)
        nodes = about_nodes(places, [found[number] for number in range(len(places))], facts or facts_of_host())
        return Outcome(
            exits=sorted(exits, key=lambda one: one.rank),
            timed_out=any(reply["timed_out"] for reply in found.values()),
            out_of_memory=any(reply["out_of_memory"] for reply in found.values()),
            foreign_cores=max(node["foreign_cpu_cores"] for node in nodes),
            launcher=self.agent_config.name,
            nodes=nodes,
            facts=facts,
            found=[
                (name, f"{place.agent.node}: {text}")
                for number, place in enumerate(places)
                for name, text in found[number].get("found", [])
            ],
            devices=[device for number in range(len(places)) for device in found[number].get("devices", [])],
        )

    def _why_gone(self, agent: Agent) -> str:
        who = "the process that forks ranks ended" if self.agent_config.only_here else f"node {agent.node} is gone"
        if agent.link.wrong:
            return f"{who}: it sent {agent.link.wrong}"
        if self.agent_config.task is not None:  # what it wrote went elsewhere
            return f"{who}: {'its agent has ended' if agent.link.has_ended else 'it gave no sign'}"
        return f"{who}: {self._last_words(expect_end=True)}"

    def _last_words(self, expect_end: bool = False) -> str:
        """The last line that agents or what starts them wrote, and how it ended."""
        assert self._log is not None and self._process is not None
        if expect_end and self.agent_config.only_here:
            self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        own = LAUNCHERS[self.agent_config.name].messages if self.agent_config.name in LAUNCHERS else ()
        telling = [line for line in lines if not line.startswith(own)] or lines
        code = self._process.poll()
        with_code = "" if code is None else f" (exit status {code})"
        return (telling[-1] if telling else "it said nothing") + with_code

    def close(self, again: bool = False) -> None:
        """End the agents and, with them, every process of a running trial.

        Tasks of a job, which cannot be started anew, wait for the next call of `start` where it is to be called again.
        """
        if self._place is not None and not again:
            if self._rendezvous is not None and not self._agents:
                links = [link for link, _ in self._rendezvous.gather(self._num_wanted, LEAVE_S)]
                self._agents = [Agent(link, "") for link in links]
            self._place.unlink(missing_ok=True)
        for agent in self._agents:
            if not again or (self.agent_config.task is not None and agent.task == self.agent_config.task.rank):
                agent.link.send({"quit": True})
            agent.link.close()
        for end in (self._own, self._rendezvous):
            if end is not None:
                end.close()
        if self._process is not None:
            for ending in (None, signal.SIGTERM, signal.SIGKILL):
                if ending is not None:
                    os.killpg(self._process.pid, ending)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=CLEANUP_GRACE_S)
                    break
        if self._log is not None:
            self._log.close()
        self._agents, self._own, self._rendezvous, self._process, self._log = [], None, None, None, None
