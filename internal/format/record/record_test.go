package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/forkd/forkd/internal/format/snapshot"
)

// kind has the functions of one kind of record.
type kind struct {
	parse func(path string, p []byte) (any, error)
	again func(v any) ([]byte, error) // encodes the result of parse
	empty func() any
}

func kinds() map[string]kind {
	return map[string]kind{
		"sandbox":    kindOf(ParseSandbox, EncodeSandbox),
		"suspended":  kindOf(ParseSuspended, EncodeSuspended),
		"workspace":  kindOf(ParseWorkspace, EncodeWorkspace),
		"once":       kindOf(ParseOnce, EncodeOnce),
		"secrets":    kindOf(ParseSecrets, EncodeSecrets),
		"base":       kindOf(ParseBase, EncodeBase),
		"tags":       kindOf(ParseTags, EncodeTags),
		"container":  kindOf(ParseContainer, EncodeContainer),
		"imagenames": kindOf(ParseImageNames, EncodeImageNames),
		"volume":     kindOf(ParseVolume, EncodeVolume),
		"key":        kindOf(ParseKey, EncodeKey),
		"encryption": kindOf(ParseEncryption, EncodeEncryption),
		"move":       kindOf(ParseMove, EncodeMove),
	}
}

func kindOf[T any](parse func(string, []byte) (*T, error), encode func(*T) ([]byte, error)) kind {
	return kind{
		parse: func(path string, p []byte) (any, error) { return parse(path, p) },
		again: func(v any) ([]byte, error) { return encode(v.(*T)) },
		empty: func() any { return new(T) },
	}
}

// golden returns the files in testdata, by name. Each name begins with the name of the kind.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		p, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.Base(f)] = p
	}
	return all
}

// kindIn returns the kind of a golden file.
func kindIn(t testing.TB, file string) kind {
	t.Helper()
	name, _, _ := strings.Cut(file, ".")
	name, _, _ = strings.Cut(name, "-")
	k, ok := kinds()[name]
	if !ok {
		t.Fatalf("%s is of no kind", file)
	}
	return k
}

// set sets every field of v to a value that is not zero. Fields of the same type get different
// values.
func set(t *testing.T, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch {
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.SetBytes(fmt.Appendf(nil, `{"n":%d}`, *n))
	case v.Type() == reflect.TypeFor[snapshot.Hook]():
		v.Set(reflect.ValueOf(snapshot.Hook{Args: []string{fmt.Sprint("text ", *n)}, TimeoutSecs: 200 + *n%100,
			OnFailure: snapshot.HookContinues}))
	case v.Type() == reflect.TypeFor[Mount]():
		v.Set(reflect.ValueOf(Mount{Name: fmt.Sprint("text ", *n), Path: fmt.Sprint("/text/", *n), Mode: MountCopy}))
	case v.Type() == reflect.TypeFor[Move]():
		v.Set(reflect.ValueOf(Move{ID: "id", Phase: MoveArriving, Node: "a", Lock: "lock", Was: "b",
			Since: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)}))
	case v.Type() == reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, *n, time.UTC)))
	default:
		switch v.Kind() {
		case reflect.String:
			v.SetString(fmt.Sprint("text ", *n))
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(200 + *n))
		case reflect.Uint32, reflect.Uint64:
			v.SetUint(uint64(200 + *n))
		case reflect.Float64:
			v.SetFloat(float64(*n) + 0.25)
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			set(t, v.Elem(), n)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			set(t, v.Index(0), n)
			set(t, v.Index(1), n)
		case reflect.Map:
			key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			set(t, key, n)
			set(t, element, n)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, element)
		case reflect.Struct:
			for i := range v.NumField() {
				set(t, v.Field(i), n)
			}
		default:
			t.Fatalf("a field is a %v: say here how to fill it", v.Type())
		}
	}
}

// Encoding and parsing preserve every field of every record.
func TestRoundTrip(t *testing.T) {
	for name, k := range kinds() {
		want, n := k.empty(), 0
		set(t, reflect.ValueOf(want).Elem(), &n)
		p, err := k.again(want)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := k.parse("f", p)
		if s, ok := want.(*Sandbox); ok && name == "suspended" {
			s.PID, s.Protocol = 0, 0
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n%+v\n%+v", name, err, got, want)
		}
	}
}

// Golden records of all versions can be read. They are then written as the golden records of the
// present version.
func TestGolden(t *testing.T) {
	all := golden(t)
	for name, p := range all {
		k := kindIn(t, name)
		got, err := k.parse(name, p)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		now, isOld := strings.CutSuffix(name, ".v0.json")
		if isOld {
			name = now + ".v1.json"
		}
		again, err := k.again(got)
		if want := bytes.TrimSpace(all[name]); err != nil || !bytes.Equal(again, want) {
			t.Errorf("%s: %v\n%s\nwant %s", name, err, again, want)
		}
	}
}

// The golden files contain every field.
func TestGoldenFilesAreWhole(t *testing.T) {
	all := golden(t)
	for name, v := range map[string]any{
		"sandbox.v0.json": &sandboxV0{}, "sandbox-latest.v1.json": &sandboxFile{},
		"workspace.v0.json": &workspaceV0{}, "workspace.v1.json": &workspaceFile{},
		"once.v0.json": &onceV0{}, "once.v1.json": &onceFile{},
		"secrets.v1.json": &secretsFile{}, "base.v0.json": &Base{}, "base.v1.json": &baseFile{},
		"tags.v1.json": &tagsFile{}, "container.v1.json": &containerFile{}, "imagenames.v1.json": &imageNamesFile{},
		"volume-tops.v1.json": &volumeFile{},
	} {
		if f := decode(all[name], v); f != nil {
			t.Fatal(f)
		}
		if field := zero(reflect.ValueOf(v).Elem()); field != "" {
			t.Errorf("%s has no %s", name, field)
		}
	}
}

// zero returns the name of a field with the zero value.
func zero(v reflect.Value) string {
	switch {
	case v.IsZero():
		return v.Type().String()
	case v.Kind() == reflect.Pointer:
		return zero(v.Elem())
	case v.Kind() == reflect.Slice:
		return zero(v.Index(0))
	case v.Kind() != reflect.Struct || v.Type() == reflect.TypeFor[time.Time]():
		return ""
	}
	for i := range v.NumField() {
		if z := zero(v.Field(i)); z != "" {
			return v.Type().Field(i).Name + ": " + z
		}
	}
	return ""
}

// A record that is truncated at any position is refused, and the error has Torn set.
func TestTruncated(t *testing.T) {
	for name, p := range golden(t) {
		p = bytes.TrimSpace(p)
		for n := range p {
			_, err := kindIn(t, name).parse("f", p[:n])
			if e := (*Error)(nil); !errors.As(err, &e) || !e.Torn || e.Path != "f" {
				t.Fatalf("%s: cut to %d of %d bytes: %v", name, n, len(p), err)
			}
		}
	}
}

// optional lists the fields that a record may lack. A missing field means the same as a field with
// the zero value, and does not change what a sandbox may do.
const optional = " origin owner expires fork limits env labels annotation idle_timeout idle_timeout_ns expiry_suspends auto_resume " +
	"hooks before_branch after_fork before_suspend after_resume " +
	"unique_strict unique top tops frozen branches branch_count suspends at rebased rebasing pending paused restoring restoring_to " +
	"allow deny allow_ech bytes_per_second packets_per_second connections hold " + // fields of a network that has a mode
	"layers writer top next own volumes memory_mib swap_mib cpus cpu_weight io_bytes_per_second io_ops_per_second " +
	"reseeded repeats more pid answer was "

// mutated makes one change after another in an object, and in each object inside it, by calling
// change(object, name) for each member. While a change is in effect, mutated calls f(field).
func mutated(object map[string]any, change func(object map[string]any, name string) (undo func()),
	f func(field string)) {
	for name, member := range object {
		undo := change(object, name)
		f(name)
		undo()
		if inner, ok := member.(map[string]any); ok {
			mutated(inner, change, func(field string) { f(name + "." + field) })
		}
	}
}

// A missing field is an error, unless it is optional.
func TestMissingMembers(t *testing.T) {
	for file, p := range golden(t) {
		if p[0] == '[' { // secrets of version 0, see TestErrorsQuoteNoSecrets
			continue
		}
		var object map[string]any
		if err := json.Unmarshal(p, &object); err != nil {
			t.Fatal(err)
		}
		remove := func(object map[string]any, name string) func() {
			member := object[name]
			delete(object, name)
			return func() { object[name] = member }
		}
		mutated(object, remove, func(field string) {
			last := field[strings.LastIndexByte(field, '.')+1:]
			if strings.Contains(optional, " "+last+" ") || strings.Contains(field, "env.") ||
				strings.Contains(field, "labels.") ||
				strings.Contains(field, "annotation.") || strings.Contains(field, "body.") {
				return
			}
			cut, err := json.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			_, err = kindIn(t, file).parse("f", cut)
			_, isSandbox := kindIn(t, file).empty().(*Sandbox)
			switch {
			case field == "version" && !isSandbox: // version 0 of the other kinds has the same fields
			case err == nil:
				t.Errorf("%s without %s: accepted", file, field)
			case field != "version" && !strings.HasPrefix(err.Error(), "f: "+field+": "):
				t.Errorf("%s without %s: %v", file, field, err)
			}
		})
	}
}

// A field is refused if it is unknown, if its name differs in case, or if it is null.
func TestUnknownMembers(t *testing.T) {
	for file, p := range golden(t) {
		if p[0] == '[' { // secrets of version 0, see TestErrorsQuoteNoSecrets
			continue
		}
		var object map[string]any
		if err := json.Unmarshal(p, &object); err != nil {
			t.Fatal(err)
		}
		check := func(what string, change func(object map[string]any, name string) func()) {
			mutated(object, change, func(field string) {
				if strings.Contains(field, "env.") || strings.Contains(field, "labels.") ||
					strings.Contains(field, "annotation.") ||
					strings.Contains(field, "body.") {
					return
				}
				changed, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := kindIn(t, file).parse("f", changed); err == nil {
					t.Errorf("%s: %s %s: accepted", file, field, what)
				}
			})
		}
		check("in other letters", func(object map[string]any, name string) func() {
			other, member := strings.ToUpper(name), object[name]
			if other == name {
				other = strings.ToLower(name)
			}
			delete(object, name)
			object[other] = member
			return func() { delete(object, other); object[name] = member }
		})
		check("with an unknown one beside it", func(object map[string]any, _ string) func() {
			object["later"] = 1
			return func() { delete(object, "later") }
		})
		check("of another type", func(object map[string]any, name string) func() {
			member := object[name]
			if name == "annotation" || name == "body" { // these may have any content
				object["later"] = 1
			}
			object[name] = []any{[]any{}}
			return func() { object[name] = member; delete(object, "later") }
		})
	}
}

// Errors name the file, the field and the fix.
func TestErrors(t *testing.T) {
	text := string(golden(t)["sandbox.v1.json"])
	for _, c := range []struct{ old, new, field, reason string }{
		{`"version":1`, `"version":2`, "version", "2: this forkd reads version 1"},
		{`"version":1`, `"version":0`, "version", "0: this forkd reads version 1"},
		{`"version":1`, `"version":"1"`, "version", `"1": this forkd`},
		{`"version":1`, `"version":null`, "version", "null: this forkd"},
		{`"network":{`, `"networks":{`, "networks", "unknown field"},
		{`{"mode":"allow",`, `{`, "network.mode", "missing"},
		{`{"mode":"allow",`, `{"mode":"",`, "network", "mode is empty"},
		{`{"mode":"allow",`, `{"mode":null,`, "network.mode", "null"},
		{`{"mode":"allow",`, `{"mode":"none","mode":"public",`, "network.mode", "appears twice"},
		{`"paused":true`, `"paused":null`, "paused", "null"},
		{`"paused":true`, `"paused":1`, "paused", "1: want true or false"},
		{`"pid":4242`, `"pid":"4242"`, "pid", `"4242": want a number`},
		{`"created":"2026-11-02`, `"created":"yesterday`, "created", "want a time"},
		{`"owner":"ownerid234567abcdefghijkln"`, `"owner":7`, "frozen[1].owner", "7: want a string"},
		{`"memory_bytes":536870912`, `"memory_bytes":0`, "memory_bytes", "0: want"},
		{`"idle_timeout_ns":90`, `"idle_timeout_ns":-90`, "idle_timeout_ns", "want 0 or more"},
		{`"protocol":15`, `"protocol":0`, "protocol", "want the control protocol"},
	} {
		changed := strings.Replace(text, c.old, c.new, 1)
		if changed == text {
			t.Fatalf("there is no %s in %s", c.old, text)
		}
		_, err := ParseSandbox("/run/x/sandbox.json", []byte(changed))
		e := (*Error)(nil)
		if !errors.As(err, &e) || e.Path != "/run/x/sandbox.json" || e.Field != c.field ||
			!strings.Contains(e.Reason, c.reason) ||
			!strings.Contains(e.Reason, otherForkd) || e.Torn {
			t.Errorf("%s: %v", c.new, err)
		}
	}
}

// Errors about secrets name the field and the fix, but quote no content. Files of version 0, which
// are lists, are checked as strictly as files of version 1, which are objects.
func TestErrorsQuoteNoSecrets(t *testing.T) {
	for _, file := range []string{"secrets.v0.json", "secrets.v1.json"} {
		text := string(golden(t)[file])
		for _, c := range []struct{ old, new, field string }{
			{`"value":"Bearer abc"`, `"value":4711`, "secrets[0].value"},
			{`"value":"Bearer abc"`, `"value":4711,"Value":"k"`, "secrets[0].value"},
			{`"host":"api`, `"later":4711,"host":"api`, "secrets[0].later"},
			{`,"value":"Bearer abc"`, ``, "secrets[0].value"},
			{`"value":"Bearer abc"`, `"value":""`, "secrets"},
			{`"Bearer abc"},`, `4711}}`, ""},
		} {
			changed := strings.Replace(text, c.old, c.new, 1)
			if changed == text {
				t.Fatalf("there is no %s in %s", c.old, text)
			}
			_, err := ParseSecrets("f", []byte(changed))
			e := (*Error)(nil)
			if !errors.As(err, &e) || e.Field != c.field || strings.Contains(err.Error(), "4711") ||
				!strings.Contains(e.Reason, otherForkd) {
				t.Errorf("%s: %s: %v", file, c.new, err)
			}
		}
	}
	_, err := ParseSecrets("f", []byte(strings.Replace(string(golden(t)["secrets.v1.json"]), "1", "2", 1)))
	if err == nil || !strings.Contains(err.Error(), "version: 2: this forkd reads version 1") {
		t.Errorf("version 2: %v", err)
	}
}

// A record is not written if ParseSandbox, or the function for another kind of record, would refuse
// it.
func TestEncodeRefuses(t *testing.T) {
	for name, k := range kinds() {
		if p, err := k.again(k.empty()); err == nil {
			t.Errorf("%s: %s", name, p)
		}
	}
	s, err := ParseSandbox("f", golden(t)["sandbox.v1.json"])
	if err != nil {
		t.Fatal(err)
	}
	s.Network = Network{}
	for _, encode := range []func(*Sandbox) ([]byte, error){EncodeSandbox, EncodeSuspended} {
		if p, err := encode(s); err == nil {
			t.Errorf("without a network: %s", p)
		}
	}
}

// ProtocolOf works even for records that ParseSandbox refuses.
func TestProtocolOf(t *testing.T) {
	for text, want := range map[string]int{
		`{"vmm_protocol":7}`:                          7,
		`{"version":1,"protocol":8,"vmm_protocol":7}`: 8,
		`{"version":9,"protocol":8,"later":[]}`:       8,
		`{"version":1}`:                               0,
		`{"vmm_protocol":"7"}`:                        0,
		`{"vmm_protocol":7`:                           0,
		`[]`:                                          0,
	} {
		if have := ProtocolOf([]byte(text)); have != want {
			t.Errorf("%s: %d, want %d", text, have, want)
		}
	}
}

// FuzzParse checks that a record is either refused, or encoded again with the same bytes. It also
// checks that an accepted sandbox has a network policy.
func FuzzParse(f *testing.F) {
	f.Fuzz(func(t *testing.T, p []byte) {
		ProtocolOf(p)
		for name, k := range kinds() {
			v, err := k.parse("f", p)
			if e := (*Error)(nil); err != nil && !errors.As(err, &e) {
				t.Fatalf("%s: an error of another type: %v", name, err)
			}
			if err != nil {
				continue
			}
			if s, ok := v.(*Sandbox); ok && s.Network.Mode == "" {
				t.Fatalf("%s without a network", name)
			}
			once, err := k.again(v)
			if err != nil {
				t.Fatalf("%s was accepted, and cannot be written: %v", name, err)
			}
			again, err := k.parse("f", once)
			if err != nil {
				t.Fatalf("%s: %v: %s", name, err, once)
			}
			if twice, err := k.again(again); err != nil || !bytes.Equal(twice, once) {
				t.Fatalf("%s: %v\n%s\n%s", name, err, once, twice)
			}
		}
	})
}
