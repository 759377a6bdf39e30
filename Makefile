# The commands of this project. `make help` lists them.

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-host test-vm test-intel test-race vulncheck fuzz lint bench frames torture torture-intel mutants soak compat recipes kube package clean

# Debian packages in the form of scripts/setup: clients of SSH and a browser for tests, and those that
# only scripts/compat needs.
TEST_NEEDS = ssh:openssh-client rsync:rsync git:git skopeo:skopeo docker-registry:docker-registry chromium:chromium /usr/share/doc/fonts-dejavu-core:fonts-dejavu-core
COMPAT_NEEDS = /usr/share/doc/python3-venv:python3-venv curl:curl

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: ## Install missing Debian packages
	@scripts/setup

build: ## Build bin/forkd with everything it carries
	@scripts/build

demo: setup build ## Set up, bake a parent, fork 100 children, print a report
	@scripts/demo

test: setup build ## Run every test: on the host, in VMs, and published clients from PyPI and npm
	@scripts/setup $(TEST_NEEDS) $(COMPAT_NEEDS)
	@scripts/test

test-host: build ## Run the tests that need no KVM
	@scripts/test host

test-vm: setup build ## Run those that need VMs (in the emulated host where KVM is not usable)
	@scripts/setup $(COMPAT_NEEDS)
	@scripts/test vm

test-intel: setup build ## Run the VM tests on kvm-intel, in emulated Intel hosts of four kinds
	@scripts/test intel
	@scripts/test exchange

test-race: setup build ## Run the host's tests under the race detector, and the VMM's where KVM works
	@scripts/test race

vulncheck: ## Look up known vulnerabilities of what forkd calls (needs vuln.go.dev, or GOVULNDB=file://…)
	@go run golang.org/x/vuln/cmd/govulncheck@v1.9.0 ./...

fuzz: ## Fuzz every target for FUZZTIME (default 10s) each
	@scripts/fuzz $(or $(FUZZTIME),10s)

lint: ## Check formatting, vet, analysers and go.mod
	@scripts/lint

bench: setup build ## Run the benchmarks; tables here, figures in out/
	@scripts/bench

frames: ## Trace the view in Chromium while 100 events a second change 1,000 sandboxes, for DURATION (20s)
	@scripts/setup chromium:chromium
	@go test -C test/view -count=1 -timeout 30m -run TestFrames -v . -frames=$(or $(DURATION),20s) -frames-nodes=1000

torture: setup build ## Branch sandboxes under fire N times (default 300)
	@scripts/torture vmm $(or $(N),300)

torture-intel: setup build ## The same on kvm-intel, in an emulated Intel host (default 30)
	@scripts/test torture-intel $(or $(N),30)

mutants: setup build ## Seed defects one at a time and show that the torture finds each (ONLY=page-left-out,…)
	@scripts/mutants $(if $(ONLY),-only $(ONLY))

soak: setup build ## Let clients work while the daemon is killed and disks fail, for DURATION (10m); out/soak.json
	@scripts/torture soak $(or $(DURATION),10m)

compat: setup build ## Run published clients against a daemon with real VMs; out/compat.json (GROUPS=…, DURATION=10m)
	@scripts/setup $(COMPAT_NEEDS)
	@scripts/compat $(GROUPS)

recipes: setup build ## Build the recipes and see in forks what each promises (RECIPES="nodejs …")
	@scripts/setup $(COMPAT_NEEDS)
	@COMPAT_TAG=none RECIPES="$(RECIPES)" scripts/compat test/recipes # builds its own parents

kube: ## Check and test the operator for Kubernetes, against a real API server
	@scripts/kube

package: setup build ## Make a Debian package and a container image in out/package, and try them
	@scripts/setup lintian:lintian man:man-db newuidmap:uidmap crun:crun curl:curl ssh-keygen:openssh-client \
		/usr/share/doc/python3-venv:python3-venv
	@scripts/package

clean: ## Remove what was built here (not the cache)
	rm -rf bin out internal/embedded/bin/forkd-*
