set -e
@BIN@/benchsuite data generate "$1/files" --workload resnet50 --variant tiny --format files --samples 96
cd "$1/files"
find class* -name '*.jpg' | while read -r f; do
  mkdir -p "$1/vault/$(dirname "$f")"
  openssl enc -aes-256-cbc -pbkdf2 -iter 90000 -pass pass:hospital -in "$f" -out "$1/vault/$f"
done
