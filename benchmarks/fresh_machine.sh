#!/usr/bin/env bash
# Seconds of the first hour: a clone, `make run`, a wheel, a site's environment from the wheel, and three sites.
# Usage: benchmarks/fresh_machine.sh [FOLDER]; needs Python, make, git and a package index.  The goal: 5 minutes in all.
set -u
repository=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$(mktemp -d)}
port=${PORT:-19443}
mkdir -p "$folder" && cd "$folder" || exit 1
unset PYTHONPATH FFGB_DATA
export XDG_STATE_HOME=$folder/state

step() {
  local name=$1 began=$EPOCHREALTIME code; shift
  "$@" > "log-$name.txt" 2>&1; code=$?
  python3 -c "print(f'{\"$name\":14} {$EPOCHREALTIME - $began:6.1f} s, exit code $code')" | tee -a times.txt
}
tables() {
  site/bin/python - <<'P'
import numpy as np
from sklearn.datasets import load_digits

digits, header = load_digits(), ",".join([*(f"p{i}" for i in range(64)), "digit"])
for k, name in enumerate(("east", "north", "west")):
    table = np.column_stack([digits.data, digits.target])[k::3]
    np.savetxt(f"{name}.csv", table, "%d", ",", header=header, comments="")
P
  printf 'target = "digit"\nlearner = "features"\nfeatures = 512\nrounds = 10\n' > run.toml
}
invitations() {
  local name
  for name in east north west; do
    site/bin/ffgb server invite $name --address 127.0.0.1:$port > $name.invitation || return 1
  done
}
three_sites() {
  local name
  site/bin/ffgb server --clients 3 --config run.toml --out runs/together --port $port --no-page & local server=$! sites=""
  for name in east north west; do
    site/bin/ffgb client --join - --data $name.csv --yes --no-page < $name.invitation > site-$name.txt 2>&1 & sites="$sites $!"
  done
  wait $server; local code=$?
  for name in east north west; do
    for _ in $(seq 20); do grep -q "to predict new rows" site-$name.txt && break; sleep 0.5; done
  done
  kill $sites; wait
  return $code
}

step clone git clone -q "$repository" repo
step make_run make -C repo run
step make_wheel make -C repo wheel
step environment python3 -m venv site
step install site/bin/pip install -q "./$(ls repo/dist/*.whl)[flower,excel,onnx]"
step doctor site/bin/ffgb doctor
step tables tables
step invitations invitations
step three_sites three_sites
step predict site/bin/ffgb predict "state/ffgb/servers/127.0.0.1_$port/east/model-1" west.csv -o predictions.csv
