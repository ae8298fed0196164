#!/bin/sh
# Runs a flow with an HTTP request, code, an MCP tool and an ability: a step is retried, another fails, and the
# run is resumed. Everything is local, in a temporary folder:  examples/flows/first-run.sh [PORT]
set -eu
cd "$(dirname "$0")"
command -v hutch >/dev/null || PATH=$(cd ../.. && pwd)/.venv/bin:$PATH
command -v hutch >/dev/null || { echo "hutch is not on the PATH: run make install in the checkout, or pip install it" >&2; exit 1; }

port=${1:-8098}
shop=http://127.0.0.1:$port
HUTCH_HOME=$(mktemp -d)
TICKETS=$HUTCH_HOME/tickets
HUTCH_MCP_CONFIG=servers.json
export HUTCH_HOME TICKETS HUTCH_MCP_CONFIG
python3 shop.py "$port" &
trap 'kill $!; rm -r "$HUTCH_HOME"' EXIT

hutch user add bo
echo 'Bearer tok-0123456789abcdef' | hutch credential set --user bo 127.0.0.1::Authorization
hutch ability add --user bo order.json --code order.js

hutch flow validate restock.json
hutch flow show restock.json
hutch flow run restock.json --run-id monday --user bo --egress-allow "127.0.0.1:$port" \
  --inputs "{\"shop\": \"$shop\", \"stock_url\": \"$shop/stock\", \"fewest\": 5}" || echo "exit code $?"

curl --silent --show-error --request POST "$shop/open"; echo
hutch flow resume monday          # repeats only the failed step
hutch flow runs
hutch flow logs monday
cat "$TICKETS"
curl --silent --show-error "$shop/asked"; echo
