package vmm

import (
	"errors"
	"fmt"

	"github.com/forkd/forkd/internal/format/disklayer"
	"github.com/forkd/forkd/internal/jail"
	"github.com/forkd/forkd/internal/proto/codec"
	"github.com/forkd/forkd/internal/proto/vm"
	"github.com/forkd/forkd/internal/proto/vmmproto"
)

// setVolume fills or empties a volume slot. It refuses a volume whose top may become longer than the files
// that this process may write; see disks.
func (s *server) setVolume(r *codec.Reader, files *donated) error {
	var req vmmproto.SetVolume
	if err := errors.Join(req.Parse(r), r.Done()); err != nil {
		return fmt.Errorf("parse volume: %w", err)
	}
	if !s.started {
		return errors.New("there is no guest that could use a volume")
	}
	if req.Layers > 0 {
		if req.SizeBytes > vm.MaxVolumeBytes {
			return fmt.Errorf("a volume of %d bytes, at most %d", req.SizeBytes, uint64(vm.MaxVolumeBytes))
		}
		most, err := jail.FileLimit()
		if err != nil {
			return err
		}
		if _, _, length := disklayer.Layout(req.SizeBytes); length > most {
			return fmt.Errorf("a volume of %d bytes needs a file of %d bytes, but this VM's process may write at most %d: "+
				"mount the volume at a fork instead", req.SizeBytes, length, most)
		}
	}
	disks, err := files.disks([]vmmproto.Disk{{SizeBytes: req.SizeBytes, Layers: req.Layers, Volume: true}})
	if err != nil {
		return fmt.Errorf("volume: %w", err)
	}
	return s.machine.SetVolume(int(req.Disk), disks[0])
}
