#!/usr/bin/env bash
# Draws docs/terminal.svg, the README's picture of `fairlock top`: some services want some locks on a server of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo build --quiet --features cli
fairlock=${CARGO_TARGET_DIR:-target}/debug/fairlock
dir=$(mktemp -d)
port=$((20000 + RANDOM % 10000))
redis-server --bind 127.0.0.1 --port $port --save "" --dir "$dir" >/dev/null &
server=$!
running=()
trap 'kill "${running[@]}" 2>/dev/null || true; kill $server; wait || true; rm -rf "$dir"' EXIT
export REDIS_URL="redis://127.0.0.1:$port"
until "$fairlock" ls >/dev/null 2>&1; do sleep 0.1; done

# Who, what, how
want() {
    "$fairlock" run "$2" --label "$1" "${@:3}" -- sleep 600 &
    running+=($!)
    until "$fairlock" show "$2" --json | grep -q "\"$1\""; do sleep 0.05; done
}
want billing-7f9c invoice:42
want billing-b01d invoice:42
want reports-55aa invoice:42 --read
want reports-c3e0 invoice:42 --read
want billing-e7d2 invoice:42
want cache-1 catalogue --read
want cache-2 catalogue --read
want importer catalogue
want cache-3 catalogue --read
want cron-a nightly-backup --max-hold 10m
want cron-b nightly-backup
want deploy-9 migration:2026-11
"$fairlock" top --svg docs/terminal.svg --size 100x24
"$fairlock" top --once --size 100x24
