package pid1

import (
	"errors"
	"io/fs"
	"os"

	"github.com/forkd/forkd/internal/guest/kmsg"
)

// quiet are kernel settings that disable periodic work. Each such wake-up costs an idle guest CPU
// time and pages of its own, hundreds of times on a host. Users may change them back; a kernel may
// lack any.
var quiet = map[string]string{
	"/proc/sys/vm/compaction_proactiveness":   "0",  // kcompactd then sleeps until needed, instead of for half a second
	"/proc/sys/kernel/hung_task_timeout_secs": "0",  // a fork looks like a hang
	"/proc/sys/vm/stat_interval":              "60", // seconds between folding the CPUs' counters into /proc/vmstat
}

// applySettings writes values to files that exist.
func applySettings(settings map[string]string, log *kmsg.Log) {
	for path, value := range settings {
		if err := writeExisting(path, value); err != nil && !errors.Is(err, fs.ErrNotExist) {
			log.Warnf("set %s to %s: %v", path, value, err)
		}
	}
}

func writeExisting(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
