package vmmclient

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The process here is no VMM but a shell that starts children as a VMM starts threads.
func TestVMMsStandBelowTheDaemon(t *testing.T) {
	own, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "forkd-vmm")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\nsleep 600 & wait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var starting sync.WaitGroup
	for range 4 { // more than Linux lets users without privileges change at once
		starting.Go(func() {
			p, err := startProcess(&Config{Bin: bin, Dir: t.TempDir()}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() {
				unix.Kill(-p.pid, unix.SIGKILL) // the session's group: the sleep too
				if err := p.wait(); err != nil {
					t.Error(err)
				}
			})
			if raw, err := unix.Getpriority(unix.PRIO_PROCESS, p.pid); err != nil || raw != max(own-vmmNice, 1) {
				t.Errorf("nice of the VMM is %d (%v), want %d", 20-raw, err, min(20-own+vmmNice, 19))
			}
			checkSession(t, p.pid)
		})
	}
	starting.Wait()
	// The daemon's threads are as they were, once those have ended that started the processes.
	var changed []int
	for range 300 {
		if changed = threadsNotAt(t, own); len(changed) == 0 {
			return
		}
		time.Sleep(autogroupRetry / 5)
	}
	t.Errorf("threads %v of this process have another nice", changed)
}

// threadsNotAt returns the threads of this process whose priority is not raw.
func threadsNotAt(t *testing.T, raw int) (tids []int) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			t.Fatal(err)
		}
		if have, err := unix.Getpriority(unix.PRIO_PROCESS, tid); err == nil && have != raw {
			tids = append(tids, tid)
		}
	}
	return tids
}

// checkSession waits until the session of pid is below others, where the kernel has such a thing.
func checkSession(t *testing.T, pid int) {
	path := fmt.Sprintf("/proc/%d/autogroup", pid)
	if _, err := os.Stat(path); err != nil {
		return
	}
	want := fmt.Sprintf("nice %d\n", vmmNice)
	var have []byte
	for range 300 {
		var err error
		if have, err = os.ReadFile(path); err != nil {
			t.Error(err)
			return
		}
		if len(have) == 0 || strings.HasSuffix(string(have), want) { // empty: autogroups are turned off
			return
		}
		time.Sleep(autogroupRetry / 5)
	}
	t.Errorf("the VMM's session is %q, want it to end with %q", have, want)
}
