package plan

import (
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// undistinguished calls found(text) for each text of a step that is not valid UTF-8, in a fixed
// order. Names of files, for example, may contain any bytes. Two such texts may have the same JSON,
// because JSON has U+FFFD for every invalid byte.
func undistinguished(step *Step, found func(string)) {
	text := func(s string) {
		if strings.ContainsRune(s, utf8.RuneError) { // an invalid byte counts as utf8.RuneError
			found(s)
		}
	}
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			text(v.String())
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Struct:
			if src, ok := v.Interface().(Source); ok { // the files of a source come first
				for i := range src.Files {
					text(src.Name(&src.Files[i]))
					text(src.Files[i].Link)
				}
				src.Files = nil
				v = reflect.ValueOf(src)
			}
			for i := range v.NumField() {
				walk(v.Field(i))
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		case reflect.Map: // a map of texts, in the same order as in JSON
			keys := v.MapKeys()
			slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
			for _, k := range keys {
				walk(k)
				walk(v.MapIndex(k))
			}
		}
	}
	walk(reflect.ValueOf(step))
}
