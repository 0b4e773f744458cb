#!/bin/sh
# The join authority (grantor) lets a key (grantee) join all its runs, or the one that RUN_ID names in the environment.
set -eu
. "$(dirname -- "$0")/cluster.sh"
said="a cluster, the grantor's key file and the grantee's public key are needed"
takes="CLUSTER GRANTOR_KEYPAIR_FILE GRANTEE_PUBKEY"
example="devnet grantor.json \$GRANTEE_PUBKEY"
[ $# -eq 3 ] || misused "$said" "$takes" "$example"
[ -n "$2" ] || misused "the second word is empty: GRANTOR_KEYPAIR_FILE; is its variable set?" "$takes" "$example"
[ -n "$3" ] || misused "the third word is empty: GRANTEE_PUBKEY; is its variable set?" "$takes" "$example"
take_cluster "$1"
exec "$aftermath" join-authorization-create --rpc "$rpc" --wallet-private-key-path "$2" --authorizer "$3"
