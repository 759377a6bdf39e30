package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// decode decodes a JSON object into the struct that v points to. Unlike encoding/json, it refuses
// unknown fields, names that differ in case, duplicate names, null in place of a required value,
// and objects that lack a field without "omitempty" or "omitzero".
func decode(p []byte, v any) *fault { return fill(reflect.ValueOf(v).Elem(), p, "") }

// fill sets v from valid JSON text. The parameter field is the name of the field.
func fill(v reflect.Value, text json.RawMessage, field string) *fault {
	_, own := v.Addr().Interface().(json.Unmarshaler)
	switch kind := v.Kind(); {
	case v.Type() == reflect.TypeFor[json.RawMessage]():
		v.SetBytes(bytes.Clone(text))
		return nil
	case string(text) == "null":
		if kind == reflect.Slice || kind == reflect.Map { // encoding/json writes nil slices and maps as null
			return nil
		}
		return wrong(field, "null: want a value; "+otherForkd)
	case own:
	case kind == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return fill(v.Elem(), text, field)
	case kind == reflect.Struct:
		return fillStruct(v, text, field)
	case kind == reflect.Slice:
		return fillSlice(v, text, field)
	case kind == reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		return members(text, field, func(name string, text json.RawMessage) *fault {
			element := reflect.New(v.Type().Elem()).Elem()
			err := fill(element, text, join(field, name))
			v.SetMapIndex(reflect.ValueOf(name), element)
			return err
		})
	}
	if json.Unmarshal(text, v.Addr().Interface()) != nil {
		return wrong(field, "%.60s: want %s; %s", text, want(v.Type()), otherForkd)
	}
	return nil
}

// want describes, for an error message, the values that a field of type t may have.
func want(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Struct: // time.Time is the only struct that JSON writes as a string
		return "a time as in RFC 3339"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.String:
		return "a string"
	}
	return fmt.Sprintf("a number that is a Go %v", t)
}

func fillSlice(v reflect.Value, text json.RawMessage, field string) *fault {
	var elements []json.RawMessage
	if json.Unmarshal(text, &elements) != nil {
		return wrong(field, "%.60s: want a list; %s", text, otherForkd)
	}
	v.Set(reflect.MakeSlice(v.Type(), len(elements), len(elements)))
	for i, text := range elements {
		if err := fill(v.Index(i), text, fmt.Sprintf("%s[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

func fillStruct(v reflect.Value, text json.RawMessage, field string) *fault {
	known := map[string]reflect.Value{}
	var required []string
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			continue // VisibleFields also lists the fields of the embedded struct
		}
		known[name] = v.FieldByIndex(f.Index)
		if options == "" {
			required = append(required, name)
		}
	}
	err := members(text, field, func(name string, text json.RawMessage) *fault {
		member, ok := known[name]
		if !ok {
			return wrong(join(field, name), "unknown field: "+otherForkd)
		}
		required = slices.DeleteFunc(required, func(r string) bool { return r == name })
		return fill(member, text, join(field, name))
	})
	if err == nil && len(required) > 0 {
		err = wrong(join(field, required[0]), "missing: %s", otherForkd)
	}
	return err
}

// members calls f for every member of a JSON object, in order.
func members(text json.RawMessage, field string, f func(name string, text json.RawMessage) *fault) *fault {
	dec := json.NewDecoder(bytes.NewReader(text))
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return wrong(field, "%.60s: want an object; %s", text, otherForkd)
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return wrong(field, "%.60s: want an object; %s", text, otherForkd)
		}
		if seen[name] {
			return wrong(join(field, name), "appears twice: "+otherForkd)
		}
		seen[name] = true
		var member json.RawMessage
		if err := dec.Decode(&member); err != nil {
			return wrong(join(field, name), "%v", err)
		}
		if err := f(name, member); err != nil {
			return err
		}
	}
	return nil
}

func join(field, name string) string {
	if field == "" {
		return fmt.Sprintf("%.100s", name)
	}
	return fmt.Sprintf("%s.%.100s", field, name)
}
