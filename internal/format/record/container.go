package record

import (
	"fmt"
	"time"
)

// Container is the record of those properties of a container that can change. The other properties
// are in the record of its sandbox.
type Container struct {
	Name     string    `json:"name"`   // empty: the container is named after the id of its sandbox
	Prefix   string    `json:"prefix"` // label prefix of the client that gave the name; empty: the client had none
	Status   string    `json:"status"` // created, running or exited; empty: another API made the sandbox
	PID      uint32    `json:"pid"`    // main process in the guest; 0: no main process runs
	ExitCode int       `json:"exit_code"`
	Error    string    `json:"error"` // why the main process could not be started, or why its exit code is unknown
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// Restarts reports whether a restart is under way. While it is true, the end of the main
	// process does not remove the container. It stays true if the daemon ends during a restart.
	Restarts bool `json:"restarts"`

	Ports []ContainerPort `json:"ports"` // published ports that were open at the latest start
}

// ContainerPort is a published port of a container.
type ContainerPort struct {
	Port    uint32 `json:"port"`    // port in the container
	Address string `json:"address"` // IP:PORT of the host
}

// containerFile is the content of the record.
type containerFile struct {
	Version int `json:"version"`
	Container
}

// EncodeContainer returns the bytes of the record of a container. It refuses a record that
// ParseContainer would refuse.
func EncodeContainer(c *Container) ([]byte, error) {
	if f := c.check(); f != nil {
		return nil, f
	}
	return encode(containerFile{Version, *c})
}

// ParseContainer decodes and checks the record of a container. Errors are *Error with the given path.
// The file at this path is not opened.
func ParseContainer(path string, p []byte) (*Container, error) {
	var now containerFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.Container, nil
}

func (c *Container) check() *fault {
	if c.Name == "" && c.Status == "" {
		return wrong("name", "empty, and so is status: %s", otherForkd)
	}
	return nil
}

// ImageNames is the record of the names that Docker's clients have given to images.
type ImageNames struct {
	Names []ImageName `json:"names"` // at least one
}

// ImageName is one name of an image.
type ImageName struct {
	Name     string `json:"name"`     // REPOSITORY:TAG
	Snapshot string `json:"snapshot"` // tag of the snapshot
	// ID is the id of the snapshot. A later snapshot with the same tag does not get this name.
	ID   string `json:"id"`
	Made bool   `json:"made"` // whether the snapshot was made for this name; its own tag is then not shown
	Who  string `json:"who"`  // Principal.Who of the client that gave the name
	// Admin reports whether the client had the scope admin when it gave the name.
	Admin bool `json:"admin"`
	// Over is the id of the snapshot that had this name as its tag when the client gave the name;
	// empty if there was none. If a later snapshot gets this tag, it takes the name, unless Admin is
	// true.
	Over string `json:"over"`
}

// imageNamesFile is the content of the record.
type imageNamesFile struct {
	Version int `json:"version"`
	ImageNames
}

// EncodeImageNames returns the bytes of the record of the names of images. It refuses a record that
// ParseImageNames would refuse.
func EncodeImageNames(n *ImageNames) ([]byte, error) {
	if f := n.check(); f != nil {
		return nil, f
	}
	return encode(imageNamesFile{Version, *n})
}

// ParseImageNames decodes and checks the record of the names of images. Errors are *Error with the
// given path. The file at this path is not opened.
func ParseImageNames(path string, p []byte) (*ImageNames, error) {
	var now imageNamesFile
	var old struct{} // no forkd has written version 0
	if err := parse(path, p, &now, &old, func() {}); err != nil {
		return nil, err
	}
	if f := now.check(); f != nil {
		return nil, f.in(path)
	}
	return &now.ImageNames, nil
}

func (n *ImageNames) check() *fault {
	if len(n.Names) == 0 {
		return wrong("names", "empty: %s", otherForkd)
	}
	for i, name := range n.Names {
		for _, f := range []struct{ field, value string }{{"name", name.Name}, {"snapshot", name.Snapshot}, {"id", name.ID},
			{"who", name.Who}} {
			if f.value == "" {
				return wrong(fmt.Sprintf("names[%d].%s", i, f.field), "empty: %s", otherForkd)
			}
		}
	}
	return nil
}
