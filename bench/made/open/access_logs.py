"""Anomaly autoencoder on web-server logs. A generator in the loop's own process reads features from the pipe
`xz -dc SHARD | perl -ne ...`; the time goes to waiting for this pipeline."""
import lzma
import random
import subprocess
import time

import numpy as np
import torch
from torch import nn

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False
FEATURES = 12
PERL = r'''
if (/^(\S+) - - \[(\d+)\/(\w+)\/(\d+):(\d+):(\d+):(\d+) [^\]]*\] "(\w+) ([^"?]*)(\?[^"]*)? HTTP\/1\.[01]" (\d{3}) (\d+) "([^"]*)" "([^"]*)"/) {
  my ($h, $m, $s, $u, $q, $c, $b, $a) = ($5, $6, $7, $9, $10 // "", $11, $12, $14);
  my @p = split m{/}, $u; my %q = map { split /=/, $_, 2 } grep { /=/ } split /[?&]/, $q;
  $f[0] += $h / 24; $f[1] += $c >= 400; $f[2] += log(1 + $b); $f[3] += @p; $f[4] += keys %q; $f[5] += length $u;
  $f[6] += $a =~ /bot|crawl|spider/i; $f[7] += $u =~ /\.(php|asp|cgi)$/; $f[8] += $q =~ /select|union|%27/i;
  $f[9] += () = $u =~ /%[0-9a-f]{2}/gi; $f[10] += $s / 60; $f[11] += $a =~ /Mozilla/;
}
if ($. % 20 == 0) { print pack("f*", map { $_ / 20 } @f); @f = (0) x 12; }
'''


def write_shards(where, shards=6, lines=50_000):
    rng, names = random.Random(5), []
    agents = ["Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/120.0", "Googlebot/2.1 (+http://google.com/bot)", "curl/8.0"]
    pages = ["/index.html", "/shop/item.php", "/img/a/b/c.png", "/api/v2/users", "/caf%C3%A9/menu", "/admin/login.asp"]
    pool = [f'10.0.{rng.randrange(256)}.7 - - [12/Mar/2024:{rng.randrange(24):02}:{rng.randrange(60):02}:17 +0000] "GET '
            f'{rng.choice(pages)}?id={rng.randrange(10**6)}&ref=mail HTTP/1.1" {rng.choice([200, 200, 304, 404])} '
            f'{rng.randrange(10**5)} "-" "{rng.choice(agents)}"\n' for _ in range(20_000)]
    for k in range(shards):
        names.append(where / f"access-{k}.log.xz")
        names[-1].write_bytes(lzma.compress("".join(rng.choices(pool, k=lines)).encode(), preset=0))
    return names


class LogBatches:
    def __init__(self, shards, batch):
        self.shards, self.batch, self.piped = shards, batch, 0.0

    def __iter__(self):
        size = self.batch * FEATURES * 4
        for shard in random.sample(self.shards, len(self.shards)):
            command = f"xz -dc {shard} | perl -ne '{PERL.replace(chr(39), '')}'"
            with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as pipe:
                while True:
                    t = time.perf_counter()
                    raw = pipe.stdout.read(size)
                    self.piped += time.perf_counter() - t
                    if len(raw) < size:
                        break
                    yield torch.from_numpy(np.frombuffer(raw, np.float32).reshape(-1, FEATURES).copy())


if __name__ == "__main__":
    torch.set_num_threads(1)
    source = LogBatches(write_shards(folder()), batch=256)
    batches = watch(source)
    net = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 256), nn.SiLU(), nn.Linear(256, 4), nn.Linear(4, 256),
                        nn.SiLU(), nn.Linear(256, FEATURES))
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    step = waiting = 0.0
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < 23:
        mark = time.perf_counter()
        for x in batches:
            got = time.perf_counter()
            loss = (net(x) - x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            waiting, steps = waiting + got - mark, steps + 1
            mark = time.perf_counter()
            step += mark - got
    tell(wall=time.perf_counter() - start, steps=steps, step=step, waiting=waiting, cause=source.piped)
