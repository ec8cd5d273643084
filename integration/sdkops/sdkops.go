// Package sdkops makes one request for each operation that the S3 client of aws-sdk-go-v2 has, as that client sends it. It knows none of
// them by name: what a newer SDK can do besides, it makes a request for, too.
package sdkops

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
)

// Names are the names of all operations, in order.
func Names() (names []string) {
	client := reflect.TypeFor[*s3.Client]()
	for i := range client.NumMethod() {
		if m := client.Method(i); isOperation(m) {
			names = append(names, m.Name)
		}
	}
	return names
}

// isOperation knows func (*s3.Client) Name(context.Context, *NameInput, ...func(*s3.Options)) (*NameOutput, error).
func isOperation(m reflect.Method) bool {
	return m.Type.NumIn() == 4 && m.Type.NumOut() == 2 && m.Type.In(2).Kind() == reflect.Pointer && m.Type.In(2).Elem().Name() == m.Name+"Input"
}

// Values of an input by the names of its fields. Of the others, those that the operation cannot do without are made up.
type Values map[string]any

// Request is what the client sends for an operation, path style, over plain HTTP, unsigned, as a server reads it.
func Request(name string, v Values) (*http.Request, error) {
	method := reflect.ValueOf(newClient(nil)).MethodByName(name)
	if !method.IsValid() {
		return nil, fmt.Errorf("the client has no operation %s", name)
	}
	input := reflect.New(method.Type().In(1).Elem())
	if err := v.put(input.Elem()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for range 10 { // what an operation cannot do without may itself have such fields
		var sent *http.Request
		method = reflect.ValueOf(newClient(&sent)).MethodByName(name)
		results := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), input})
		if sent != nil {
			return sent, nil // whatever the client thought of the answer
		}
		err, _ := results[1].Interface().(error)
		var missing smithy.InvalidParamsError
		if !errors.As(err, &missing) {
			return nil, fmt.Errorf("%s: the client sent nothing: %w", name, err)
		}
		for _, m := range missing.Errs() {
			field := m.(smithy.InvalidParamError).Field()
			if err := fill(input.Elem(), strings.Split(field, ".")[1:]); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", name, field, err)
			}
		}
	}
	return nil, fmt.Errorf("%s: its input is never valid", name)
}

func (v Values) put(input reflect.Value) error {
	for name, value := range v {
		field := input.FieldByName(name)
		if !field.IsValid() {
			continue // of another operation
		}
		switch from := reflect.ValueOf(value); {
		case from.Type().AssignableTo(field.Type()):
			field.Set(from)
		case field.Kind() == reflect.Pointer && from.Type().AssignableTo(field.Type().Elem()):
			field.Set(reflect.New(from.Type()))
			field.Elem().Set(from)
		default:
			return fmt.Errorf("%s is a %s, and not a %s", name, field.Type(), from.Type())
		}
	}
	return nil
}

// fill sets the field at the end of a path such as Delete, Objects[0], Key.
func fill(v reflect.Value, path []string) error {
	name, _, indexed := strings.Cut(path[0], "[")
	field := v.FieldByName(name)
	switch {
	case !field.IsValid():
		return errors.New("there is no such field")
	case len(path) == 1:
		return set(field)
	case field.Kind() == reflect.Interface: // a union, whose variant stands in the brackets
		field = field.Elem().Elem().FieldByName("Value")
	case indexed:
		field = field.Index(0)
	case field.Kind() == reflect.Pointer:
		field = field.Elem()
	}
	return fill(field, path[1:])
}

// someOf is a value for a field that may be one of several types.
func someOf(field reflect.Type) (reflect.Value, error) {
	for _, v := range []any{&types.ObjectEncryptionMemberSSEKMS{}, strings.NewReader("content")} {
		if reflect.TypeOf(v).AssignableTo(field) {
			return reflect.ValueOf(v), nil
		}
	}
	return reflect.Value{}, fmt.Errorf("no value is known for %s", field)
}

// set gives a field a value.
func set(field reflect.Value) error {
	switch field.Kind() {
	case reflect.Pointer:
		field.Set(reflect.New(field.Type().Elem()))
		if field.Elem().Kind() == reflect.Struct {
			return nil
		}
		return set(field.Elem())
	case reflect.String:
		field.SetString("x")
	case reflect.Int32, reflect.Int64:
		field.SetInt(1)
	case reflect.Bool:
		field.SetBool(true)
	case reflect.Slice:
		field.Set(reflect.MakeSlice(field.Type(), 1, 1))
		if field.Index(0).Kind() == reflect.String {
			field.Index(0).SetString("x")
		}
	case reflect.Interface:
		v, err := someOf(field.Type())
		if err != nil {
			return err
		}
		field.Set(v)
	default:
		return fmt.Errorf("no value is known for %s", field.Type())
	}
	return nil
}

// newClient is a client that writes down what it sends, and sends nothing.
func newClient(sent **http.Request) *s3.Client {
	return s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: aws.String("http://localhost"), UsePathStyle: true, Credentials: aws.AnonymousCredentials{},
		HTTPClient: recorder{sent}, RetryMaxAttempts: 1, DisableS3ExpressSessionAuth: aws.Bool(true),
	})
}

type recorder struct{ sent **http.Request }

var errSent = errors.New("nothing was sent")

// Do is [s3.HTTPClient]'s.
func (r recorder) Do(out *http.Request) (*http.Response, error) {
	var wire bytes.Buffer
	if err := out.Write(&wire); err != nil {
		return nil, err
	}
	in, err := http.ReadRequest(bufio.NewReader(&wire))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(in.Body)
	if err != nil {
		return nil, err
	}
	in.Body = io.NopCloser(bytes.NewReader(body))
	*r.sent = in
	return nil, errSent
}
