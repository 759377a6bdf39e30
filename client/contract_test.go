package client_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/forkd/forkd/test/contract"
)

// Environment variables that tell the tests where the fake daemon is.
const (
	urlEnv      = "FORKD_CLIENT_TEST_URL"
	tokenEnv    = "FORKD_CLIENT_TEST_TOKEN"
	snapshotEnv = "FORKD_CLIENT_TEST_SNAPSHOT"
	tmpEnv      = "FORKD_CLIENT_TEST_TMP"
	fileEnv     = "FORKD_CLIENT_TEST_FILE"
)

// TestMain starts the fake daemon that all tests and examples use.
func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "forkd-client-test")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	rig, err := contract.StartRig(dir)
	if err != nil {
		return 1, err
	}
	for name, value := range map[string]string{urlEnv: rig.URL, tokenEnv: rig.Token, snapshotEnv: rig.Snapshot,
		tmpEnv: rig.Tmp, fileEnv: rig.File} {
		if err := os.Setenv(name, value); err != nil {
			return 1, err
		}
	}
	code = m.Run()
	return code, rig.Close()
}

func fakeDaemon() contract.Daemon {
	return contract.Daemon{URL: os.Getenv(urlEnv), Token: os.Getenv(tokenEnv), Snapshot: os.Getenv(snapshotEnv),
		Tmp:  os.Getenv(tmpEnv),
		File: os.Getenv(fileEnv), Fake: true}
}

// With the fake daemon, the Go client passes the contract of the SDKs.
func TestContract(t *testing.T) {
	scenarios, err := contract.Scenarios()
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range scenarios {
		if s.Needs == "vm" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			if err := contract.Run(t.Context(), fakeDaemon(), s, fmt.Sprintf("run%d", i)); err != nil {
				t.Error(err)
			}
		})
	}
}

// The client has a method for every operation of the API, and some scenario calls this method.
func TestContractIsWhole(t *testing.T) {
	operations, err := contract.Operations()
	if err != nil {
		t.Fatal(err)
	}
	scenarios, err := contract.Scenarios()
	if err != nil {
		t.Fatal(err)
	}
	called, methods := map[string]bool{}, contract.Methods()
	for _, s := range scenarios {
		for _, step := range s.Steps {
			called[step.Do] = true
		}
	}
	for _, o := range operations {
		if methods[o.Op] == "" {
			t.Errorf("%s: the runner of the Go client does not have it", o.Op)
		}
		if !called[o.Op] {
			t.Errorf("%s: no scenario calls it", o.Op)
		}
		delete(methods, o.Op)
	}
	for op := range methods {
		t.Errorf("%s: operations.yaml does not have it", op)
	}
}
