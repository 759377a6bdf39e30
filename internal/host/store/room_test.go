package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/forkd/forkd/internal/host/vault"
)

// A snapshot that will be encrypted gets a further file in RAM only if there is room. Other snapshots
// have such files on the disk.
func TestRoomForFilesInRAM(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err == nil {
		_, err = f.Write(make([]byte, 1<<20))
	}
	if err == nil {
		err = f.Sync() // allocates the blocks
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	free := uint64(ramReserve + 1<<20)
	s := &Store{ram: "ram", ramRoom: func() (uint64, uint64, error) { return free, free, nil }}
	secret := &Staging{store: s, secret: &vault.Seal{}}
	var small *vault.RoomError
	if err := secret.CheckRoom([]*os.File{f}); !errors.As(err, &small) || small.Bytes < 1<<20 {
		t.Errorf("a file as large as the room: %v", err)
	}
	if err := (&Staging{store: s}).CheckRoom([]*os.File{f}); err != nil {
		t.Errorf("not encrypted: %v", err)
	}
	free *= 2
	if err := secret.CheckRoom([]*os.File{f}); err != nil {
		t.Errorf("with room: %v", err)
	}
}
