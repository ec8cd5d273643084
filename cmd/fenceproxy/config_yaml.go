package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// notSupportedYet is what is said of a key or a value that the design has and this version has not.
const notSupportedYet = "not supported yet by this version"

// configFaults is all that is wrong with a configuration, in the order of its lines.
type configFaults struct {
	file   string
	faults []configFault
}

type configFault struct {
	line int // from 1; 0 where it is not known
	text string
}

func (f *configFaults) Error() string {
	lines := make([]string, len(f.faults))
	for i, fault := range f.faults {
		lines[i] = fmt.Sprintf("%s:%d: %s", f.file, fault.line, fault.text)
		if fault.line == 0 {
			lines[i] = fmt.Sprintf("%s: %s", f.file, fault.text)
		}
	}
	return strings.Join(lines, "\n")
}

// A configReader takes values out of YAML nodes and collects what is wrong with them: it goes on after a fault.
type configReader struct {
	getenv func(string) (string, bool)
	faults configFaults
	names  map[*yaml.Node]string // the key whose value a node is, for messages
	bad    map[*yaml.Node]bool   // has a fault; nil never has one
	secret map[*yaml.Node]bool   // is never printed
	warns  []string              // what is no fault, and still to be told
}

func newConfigReader(file string, getenv func(string) (string, bool)) *configReader {
	return &configReader{
		getenv: getenv,
		faults: configFaults{file: file},
		names:  map[*yaml.Node]string{},
		bad:    map[*yaml.Node]bool{},
		secret: map[*yaml.Node]bool{},
	}
}

func (r *configReader) err() error {
	if len(r.faults.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(r.faults.faults, func(a, b configFault) int { return a.line - b.line })
	return &r.faults
}

func (r *configReader) faultAt(line int, text string) {
	r.faults.faults = append(r.faults.faults, configFault{line, text})
}

// fault blames a node. A nil one stands for something that the file does not have.
func (r *configReader) fault(n *yaml.Node, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if n == nil {
		r.faultAt(0, text)
		return
	}
	if name := r.names[n]; name != "" {
		text = name + ": " + text
	}
	r.bad[n] = true
	r.faultAt(n.Line, text)
}

// warn tells something about a node that is no fault.
func (r *configReader) warn(n *yaml.Node, format string, args ...any) {
	r.warns = append(r.warns, fmt.Sprintf("%s:%d: %s: %s", r.faults.file, n.Line, r.names[n], fmt.Sprintf(format, args...)))
}

// document gives the content of the only document, nil where there is none.
func (r *configReader) document(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err)
	default:
		r.faultAt(second.Line, "a second document begins here; a configuration is one, so take the line --- out")
	}
	content := document.Content[0]
	if content.Kind == yaml.ScalarNode && content.Tag == "!!null" && content.Style&yaml.TaggedStyle == 0 && content.Anchor == "" {
		return nil
	}
	r.plain(content)
	return content
}

var yamlLine = regexp.MustCompile(`^line (\d+): `)

func (r *configReader) syntax(err error) {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if strings.HasPrefix(text, "unknown anchor") { // the rest may be a secret without quotes
		text = "a value begins with *, and names an anchor that is not there; put quotes around it"
	}
	m := yamlLine.FindStringSubmatch(text)
	if m == nil {
		r.faultAt(0, "this is not YAML: "+text)
		return
	}
	line, _ := strconv.Atoi(m[1])
	r.faultAt(line, "this or the next line is not YAML: "+text[len(m[0]):])
}

// plain refuses what makes a file say other things than its lines show.
func (r *configReader) plain(n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		r.fault(n, "%s is an alias; write the value itself", r.sign("*", n.Value, n))
		return // not into the alias: it may hold itself
	}
	if n.Anchor != "" {
		r.fault(n, "%s is an anchor; there are no aliases here, so take it out", r.sign("&", n.Anchor, n))
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.fault(n, "%s is a tag; write the value alone", r.sign("", n.Tag, n))
	}
	for i, child := range n.Content {
		if n.Kind != yaml.MappingNode {
			r.plain(child)
			continue
		}
		key := n.Content[i-i%2]
		switch {
		case key.Tag == "!!merge":
			if child == key {
				r.fault(key, "<< merges another mapping; write its keys here instead")
			}
			continue
		case isSecretKey(key.Value) && child != key:
			r.secret[child] = true
		}
		r.plain(child)
	}
}

// sign is how a fault calls what YAML takes for a sign. It may be a secret whose quotes were forgotten.
func (r *configReader) sign(mark, name string, n *yaml.Node) string {
	if r.secret[n] {
		return "a value that begins with & or * or !, and has no quotes,"
	}
	return mark + name
}

// isSecretKey says that the value of a key is never printed.
func isSecretKey(name string) bool {
	return name == "secret" || name == "secret_key" || name == "dsn" || name == "password"
}

// A configKey is a key of a mapping and how its value is read. read is nil for a key that this version cannot honour.
type configKey[T any] struct {
	name string
	read func(*configReader, *yaml.Node, *T)
}

// readMapping reads the known keys of a mapping and refuses others. It returns the values that stand there, nil where there
// is no mapping.
func readMapping[T any](r *configReader, n *yaml.Node, keys []configKey[T], into *T) map[string]*yaml.Node {
	pairs := r.pairs(n)
	if n.Kind != yaml.MappingNode {
		return nil
	}
	values := map[string]*yaml.Node{}
	for _, p := range pairs {
		name := p.key.Value
		values[name] = p.value
		i := slices.IndexFunc(keys, func(k configKey[T]) bool { return k.name == name })
		switch {
		case i < 0 && strings.Contains(name, ":"): // what stands behind it may be a secret
			word, _, _ := strings.Cut(name, ":")
			r.fault(p.key, "there is no space after the colon of %q; YAML wants one there", word+":")
		case i < 0:
			meant := nearestName(name, configKeyNames(keys))
			r.fault(p.key, "there is no key %q here; %s", name, insteadOfName(meant, supportedKeys(keys)))
		case keys[i].read == nil:
			r.fault(p.key, "%s is %s; take it out", name, notSupportedYet)
		default:
			keys[i].read(r, p.value, into)
		}
	}
	return values
}

func configKeyNames[T any](keys []configKey[T]) []string {
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
	}
	return names
}

// supportedKeys names the keys that this version can honour.
func supportedKeys[T any](keys []configKey[T]) []string {
	return configKeyNames(slices.DeleteFunc(slices.Clone(keys), func(k configKey[T]) bool { return k.read == nil }))
}

type yamlPair struct{ key, value *yaml.Node }

// pairs gives the keys and values of a mapping, each key once.
func (r *configReader) pairs(n *yaml.Node) []yamlPair {
	if !r.kind(n, yaml.MappingNode, "keys and values") {
		return nil
	}
	var pairs []yamlPair
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch {
		case r.bad[key]:
			continue
		case key.Kind != yaml.ScalarNode:
			r.fault(key, "a key must be a word")
			continue
		case seen[key.Value] > 0:
			r.fault(key, "%s stands in line %d already; take one of them out", key.Value, seen[key.Value])
			continue
		}
		seen[key.Value] = key.Line
		r.names[value] = key.Value
		pairs = append(pairs, yamlPair{key, value})
	}
	return pairs
}

// yamlValueOf looks for a key of what may be a mapping.
func yamlValueOf(n *yaml.Node, key string) *yaml.Node {
	if n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// list gives the items of a list.
func (r *configReader) list(n *yaml.Node) []*yaml.Node {
	if !r.kind(n, yaml.SequenceNode, "a list") {
		return nil
	}
	for _, item := range n.Content {
		r.names[item] = r.names[n]
	}
	return n.Content
}

func (r *configReader) kind(n *yaml.Node, kind yaml.Kind, what string) bool {
	switch {
	case r.bad[n] && n.Kind != kind:
		return false
	case n.Kind == kind:
		return true
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		r.fault(n, "has no value; write %s, or take it out for the default", what)
	default:
		r.fault(n, "must be %s", what)
	}
	return false
}
