#!/bin/sh
# Joins the run that scripts/setup-run.sh prepared; further arguments go to `aftermath-solana train`. A member of tier 0
# keeps checkpoints, so that the run outlives its members. With `test`, one member uses
# DATA_PARALLELISM x TENSOR_PARALLELISM GPUs of this machine (default 1).
set -eu
. "$(dirname -- "$0")/cluster.sh"
if [ $# -lt 2 ] || { [ "$2" != test ] && [ "$2" != light ]; }; then
    misused "a cluster, and test or light, are needed" "localnet|devnet|URL test|light [TRAIN OPTIONS...]" \
        "localnet light --matformer-tier 1"
fi
take_cluster "$1"
cluster=$1
run_id=${RUN_ID:-$2}
checkpoints=runs/$2/checkpoints/member-$$
variant=$2
shift 2
# Put these first: the last of repeated options wins, which is then the caller's.
[ "$variant" != test ] ||
    set -- --data-parallelism "${DATA_PARALLELISM:-0}" --tensor-parallelism "${TENSOR_PARALLELISM:-1}" "$@"
own_wallet "$cluster" "member-$$"
cd -- "$here"
case " $* " in
    *" --matformer-tier"[\ =][1-9]* | *" --checkpoint-dir"[\ =]* | *" --hub-repo"[\ =]*) ;;
    *)
        [ "${MATFORMER_TIER:-0}" != 0 ] || [ -n "${CHECKPOINT_DIR:-}${HUB_REPO:-}" ] ||
            set -- --checkpoint-dir "$checkpoints" "$@"
        ;;
esac
# The paths in these configs are those of this project.
export DATA_ROOT="${DATA_ROOT:-$here}"
exec "$aftermath" train --rpc "$rpc" --run-id "$run_id" "$@"
