#!/bin/sh
# Prepares a run that anybody may join: model, tokens, programs, the run itself, its configuration, and starts it.
set -eu
. "$(dirname -- "$0")/cluster.sh"
if [ $# -ne 2 ] || { [ "$2" != test ] && [ "$2" != light ]; }; then
    misused "a cluster, and test or light, are needed" "localnet|devnet|URL test|light" "localnet light"
fi
take_cluster "$1"
variant=$2
run_id=${RUN_ID:-$variant}
own_wallet "$1" owner
cd -- "$here"

if [ "$variant" = light ]; then
    config=config/solana-test/light-config.toml
else
    config=config/solana-test/config.toml
fi
# Contact the cluster first: without it, or without funds, create nothing.
"$aftermath" deploy --rpc "$rpc"
"$aftermath" run-files "$config"
if found=$("$aftermath" json-dump-run --rpc "$rpc" --run-id "$run_id" 2>/dev/null); then
    case $found in
        *'"state": "paused"'* | *'"state": "uninitialized"'*) echo "run $run_id exists; configuring it again" ;;
        *)
            echo "run $run_id is set up already; join with: sh scripts/start-training.sh $1 $variant"
            exit 0
            ;;
    esac
else
    "$aftermath" create-run --rpc "$rpc" --run-id "$run_id" --name "$run_id" --description "The $variant recipe"
fi
"$aftermath" update-config --rpc "$rpc" --run-id "$run_id" --config-path "$config"
"$aftermath" set-paused --rpc "$rpc" --run-id "$run_id" resume
echo "ready; join with: sh scripts/start-training.sh $1 $variant"
