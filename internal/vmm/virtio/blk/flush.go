package blk

import (
	"cmp"
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// errSyncing says that a flush waits for a sync.
var errSyncing = errors.New("the disk is being synced")

// syncing is a sync of the files that a slot has written.
type syncing struct {
	ended     atomic.Bool
	err       error // error of this sync, or an earlier error that no flush has reported; set before ended
	ignored   bool  // whether the flush needs another sync
	forgotten bool  // whether err belongs to an earlier disk
}

// flush executes a flush request. Only a slot syncs its disk: other disks do not survive a reboot of
// the host.
//
// A sync may take seconds, and a pause must not wait for it. So another goroutine syncs, flush
// returns errSyncing, and the request stays in the queue. When the sync ends, the transport is
// kicked and serves the request again. If a snapshot is taken in between, the restored device
// begins a sync of its own. If a layer is replaced or the device is reset in between, flush starts
// another sync, but only when the present one has ended. If flush did not wait, a driver that
// resets its device again and again would start any number of syncs.
//
// If the sync fails, flush answers the request with an error. It does not sync again, because Linux
// reports an error only once, and then drops the data. For the same reason, the error of a sync that is
// replaced by another sync is kept for the next flush of the same disk.
func (d *Device) flush() (status byte, pending error) {
	if !d.slot {
		return statusOK, nil // nothing is cached; see Overlay
	}
	var unreported error
	if d.syncing != nil && d.syncing.ignored && d.syncing.ended.Load() {
		// os.ErrClosed means that a layer was replaced. The next sync includes the layer's data.
		if !d.syncing.forgotten && !errors.Is(d.syncing.err, os.ErrClosed) {
			unreported = d.syncing.err
		}
		d.syncing = nil
	}
	if d.syncing == nil {
		s, transport, files := &syncing{}, d.transport, d.unsynced()
		d.syncing = s
		go func() {
			s.err = cmp.Or(d.sync(files), unreported)
			s.ended.Store(true)
			transport.Kick()
		}()
	}
	if d.syncing.ignored || !d.syncing.ended.Load() {
		return statusIOErr, errSyncing
	}
	err := d.syncing.err
	d.syncing = nil
	if err != nil {
		return statusIOErr, nil
	}
	d.frozen = 0
	return statusOK, nil
}

// ignoreSync makes the next flush begin a sync of its own. If the present sync fails, the next flush
// still reports the error.
func (d *Device) ignoreSync() {
	if d.syncing != nil {
		d.syncing.ignored = true
	}
}

// forgetSync is like ignoreSync, but the error of the present sync is of no interest, because the disk
// is replaced.
func (d *Device) forgetSync() {
	d.ignoreSync()
	if d.syncing != nil {
		d.syncing.forgotten = true
	}
}

// unsynced returns the files that must be synced: the top, and the layers that were tops since the
// latest sync.
func (d *Device) unsynced() (files []*os.File) {
	for _, l := range d.disk.layers[len(d.disk.layers)-1-d.frozen:] {
		files = append(files, l.File())
	}
	return files
}

// syncFiles syncs the data of files. A file may be closed during its sync, when a layer is replaced.
// Then the sync continues, and the descriptor is closed afterwards. For a file that was closed
// before, syncFiles returns an error, which flush ignores.
func syncFiles(files []*os.File) error {
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return err
		}
		var failed error
		err = raw.Control(func(fd uintptr) {
			failed = retry(func() error { return unix.Fdatasync(int(fd)) })
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
	}
	return nil
}
