package netclient

import (
	"os"
	"testing"

	"github.com/forkd/forkd/internal/host/vmfake"
)

func TestMain(m *testing.M) {
	vmfake.ServeNet()
	os.Exit(m.Run())
}
