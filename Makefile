.PHONY: test lint proof

test: ## run all tests; brings what they need
	bash integration/test

lint: ## gofumpt, vet, staticcheck, govulncheck
	bash .ci/lint

proof: ## the long form of the tests of the promise: hours; writes docs/proof.md
	bash integration/proof
