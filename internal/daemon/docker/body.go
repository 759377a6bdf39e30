package docker

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/forkd/forkd/internal/daemon/face"
)

// maxBody bounds a JSON body, in bytes.
const maxBody = 1 << 20

// readJSON decodes a body. An empty body leaves v unchanged.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	p, err := face.ReadBody(w, r, maxBody)
	if err != nil || len(bytes.TrimSpace(p)) == 0 {
		return err
	}
	return decode("request body", p, v)
}

func decode(what string, p []byte, v any) error {
	err := json.Unmarshal(p, v)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return face.BadRequest("%s: got a JSON %s", wrong.Field, wrong.Value)
	}
	if err != nil {
		return face.BadRequest("%s: %s", what, strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// words is a list of texts that clients may also send as one text.
type words []string

// UnmarshalJSON implements json.Unmarshaler.
func (s *words) UnmarshalJSON(p []byte) error {
	var one string
	if json.Unmarshal(p, &one) == nil && string(p) != "null" {
		*s = words{one}
		return nil
	}
	return json.Unmarshal(p, (*[]string)(s))
}

// onlyKnown returns an error if an object has a field with a value, and the field is not in the
// list known. Docker's clients send all fields, so onlyKnown accepts unknown fields without a
// value. It compares the names of fields exactly, but encoding/json ignores case. So if a field
// with a value has a known name in another case, onlyKnown refuses it. In the error, the name of
// the field follows the given prefix.
func onlyKnown(prefix string, p json.RawMessage, known ...string) error {
	if len(p) == 0 || string(p) == "null" {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := decode(strings.TrimSuffix(prefix, ".")+" ", p, &fields); err != nil {
		return err
	}
	var names []string
	for name, value := range fields {
		if !slices.Contains(known, name) && !isEmpty(value) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return unsupported(prefix+names[0], insteadOf(names[0]))
}

// insteadOf returns what a client can do instead of sending a field.
func insteadOf(field string) string {
	switch field {
	case "Binds", "Mounts", "VolumesFrom", "Volumes", "VolumeDriver":
		return "copy files with docker cp; forkd run and forkd fork -v NAME:/PATH mount forkd's volumes, and " +
			"-v ./DIR:/PATH copies a directory of the host (docs/volumes.md)"
	case "Tmpfs":
		return "use a directory of the container's own disk"
	case "Privileged", "CapDrop", "Devices", "DeviceRequests", "SecurityOpt":
		return "a container is a virtual machine, and root has all rights in it and none on the host"
	case "NetworkMode", "Links", "EndpointsConfig", "ExtraHosts", "Dns", "DnsSearch", "DnsOptions":
		return "each container has a network of its own; forkd's policies decide about its connections (docs/network.md)"
	}
	return "omit it"
}

// isEmpty reports whether a value is null, false, 0, or an empty text, list or object. An object
// with names is not empty, even if all its values are: the names may be what a client asks for,
// such as the directories of --tmpfs.
func isEmpty(p json.RawMessage) bool {
	var v any
	if json.Unmarshal(p, &v) != nil {
		return false
	}
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case float64:
		return v == 0
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// allEmpty reports whether all fields of an object are empty.
func allEmpty(p json.RawMessage) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(p, &fields) != nil {
		return false
	}
	for _, value := range fields {
		if !isEmpty(value) {
			return false
		}
	}
	return true
}
