package integration_test

import (
	"fmt"
	"time"

	"github.com/forkd/forkd/client"
	"github.com/forkd/forkd/internal/vmtest"
	"github.com/forkd/forkd/test/torture/guest"
)

// autopsyScript prints the stack of each thread of the guest program. Then it makes the program
// exit and print the stacks of its goroutines.
const autopsyScript = `exec 2>&1
for p in /proc/[0-9]*; do
	[ -n "$(tr -d '\0' <$p/cmdline)" ] || continue
	for t in $p/task/*; do
		echo "$t $(cat $t/comm) $(cut -d')' -f2 $t/stat | cut -d' ' -f2,13,14): $(cat $t/wchan) $(cat $t/syscall)"
	done
	case "$(cat $p/comm)" in torture) kill -QUIT ${p#/proc/} ;; esac
done
cat /proc/interrupts /proc/uptime /proc/meminfo /sys/block/vd*/inflight /sys/block/vd*/stat; df /
sleep 3; cat ` + guest.Log

// autopsy logs information about a guest that did not answer correctly, and returns a summary.
func (x *fire) autopsy(id string) string {
	x.t.Helper()
	console, err := x.d.Console(x.d.ctx(x.t, stepLimit), id)
	x.t.Logf("its console: %v\n%s", err, vmtest.LastLines(console, 60))
	before, err := x.d.Stats(x.d.ctx(x.t, stepLimit), id)
	if err != nil {
		return "the guest has ended"
	}
	time.Sleep(time.Second)
	after, err := x.d.Stats(x.d.ctx(x.t, stepLimit), id)
	if err != nil {
		return "the guest has ended since"
	}
	res, err := x.d.Exec(x.d.ctx(x.t, stepLimit), id, client.ExecRequest{
		Args: []string{"/bin/sh", "-c", autopsyScript}, TimeoutSecs: 60,
	})
	x.t.Logf("the guest: %v, %s\n%s%s", err, res.Error, res.Stdout, res.Stderr)
	return fmt.Sprintf("a second of it: %d to %d exits; another command: %v %s; its console ends: %s",
		before.KVMExits, after.KVMExits, err, res.Status, vmtest.LastLines(console, 3))
}
