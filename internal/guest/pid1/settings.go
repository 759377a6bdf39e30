package pid1

import (
	"errors"
	"io/fs"
	"os"

	"github.com/forkd/forkd/internal/guest/kmsg"
)

// quiet contains kernel settings that disable periodic work. Each periodic wake-up would cost CPU
// time and memory in every idle guest of a host, and a host may have hundreds of guests. Users can
// change the settings. A kernel may lack some of them.
var quiet = map[string]string{
	"/proc/sys/vm/compaction_proactiveness":   "0", // kcompactd sleeps until it is needed
	"/proc/sys/kernel/hung_task_timeout_secs": "0", // disabled, because a fork looks like a hang
	// interval in seconds at which the CPUs' counters are added to /proc/vmstat
	"/proc/sys/vm/stat_interval": "60",
}

// applySettings writes values to the files that exist.
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
