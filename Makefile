.PHONY: test lint

test: ## run all tests; brings what they need
	bash integration/test

lint: ## gofumpt, vet, staticcheck, govulncheck
	bash .ci/lint
