"""Translation pairs whose source side goes through the old group's perl normalizer: collate_fn starts perl for each batch and waits
for the child process to end."""

import re
import subprocess
import time
from pathlib import Path
from zlib import crc32

import torch
from torch import nn
from torch.utils.data import DataLoader

from case import folder, tell, watch

CAUSE = "waiting/child_process"
RANKS = 1
BORDERLINE = False
SCRIPT = r"""
use strict; use utf8; binmode(STDIN, ":utf8"); binmode(STDOUT, ":utf8");
my @rules; open(my $in, "<:utf8", $ARGV[0]) or die; 
while (<$in>) { chomp; my ($from, $to) = split /\t/; push @rules, [qr/\b$from\b/i, $to]; }
while (my $line = <STDIN>) {
  chomp $line; $line = " $line ";
  $line =~ s/([^\p{IsAlnum}\s\.\'\`\,\-])/ $1 /g; $line =~ s/([^\p{IsN}])[,]([^\p{IsN}])/$1 , $2/g;
  for my $rule (@rules) { $line =~ s/$rule->[0]/$rule->[1]/g; }
  $line =~ s/\s+/ /g; print "$line\n";
}
"""
perl_seconds = []


class Normalize:
    """collate_fn: text in, ids out."""

    def __init__(self, script, rules, vocabulary=8192, length=40):
        self.command, self.vocabulary, self.length = ["perl", str(script), str(rules)], vocabulary, length

    def __call__(self, lines):
        began = time.perf_counter()
        done = subprocess.run(self.command, input="\n".join(lines), capture_output=True, text=True, check=True)
        perl_seconds.append(time.perf_counter() - began)
        ids = torch.zeros(len(lines), self.length, dtype=torch.long)
        for row, line in enumerate(done.stdout.splitlines()):
            words = [1 + crc32(word.encode()) % (self.vocabulary - 1) for word in line.split()[: self.length]]
            ids[row, : len(words)] = torch.tensor(words)
        return ids


class Shifted(nn.Module):
    def __init__(self, vocabulary=8192, width=48):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.causal = nn.Conv1d(width, width, 4, padding=3)
        self.out = nn.Linear(width, 512)

    def forward(self, ids):
        hidden = self.causal(self.embed(ids).transpose(1, 2))[..., : ids.shape[1]]
        return self.out(torch.relu(hidden).transpose(1, 2))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = folder()
    text = Path("@DATA@/text/tinyshakespeare.txt").read_text()
    lines = [" ".join(piece.split()) for piece in re.split(r"\n\n", text) if len(piece) > 60]
    lines = [line[:240] for line in lines]
    words = sorted(set(re.findall(r"[a-z]{5,}", text.lower())))[:700]
    (place / "rules.tsv").write_text("".join(f"{word}\t{word[:-1]}@@ {word[-1]}\n" for word in words))
    (place / "normalize.perl").write_text(SCRIPT)
    loader = watch(DataLoader(lines, batch_size=32, shuffle=True, drop_last=True, collate_fn=Normalize(place / "normalize.perl", place / "rules.tsv")))
    model = Shifted()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    steps, waited, began = 0, 0.0, time.perf_counter()
    while time.perf_counter() - began < 24:
        asked = time.perf_counter()
        for ids in loader:
            waited += time.perf_counter() - asked
            loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), (ids[:, 1:] % 512).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            asked = time.perf_counter()
            if asked - began > 26:
                break
    wall = time.perf_counter() - began
    perl = sum(perl_seconds)
    tell(steps=steps, step=wall / steps, loader=waited / steps, child=perl / steps, share=perl / wall)


if __name__ == "__main__":
    main()
