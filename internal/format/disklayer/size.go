package disklayer

import (
	"fmt"
	"os"
)

// SizeOf returns the size in bytes of the disk that a layer belongs to, after checking the layer's
// footer. Unlike Open, it does not map the file. So it is safe for a file that another process may
// truncate.
func SizeOf(f *os.File) (uint64, error) {
	size, err := checkFooter(f)
	if err != nil {
		return 0, fmt.Errorf("disk layer %s: %w", f.Name(), err)
	}
	return size, nil
}
