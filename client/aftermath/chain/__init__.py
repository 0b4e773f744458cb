"""Talk to Solana: RPC with fail-over, wallets, the two programs, subscriptions and deployment.

Knows nothing of torch or peers. A training member uses `member.SolanaMember`. Commands use
`client.CoordinatorClient` and `authorizer.Authorizer`. All of them call nodes through
`rpc.RpcPool`.
"""
