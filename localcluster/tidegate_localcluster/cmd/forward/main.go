// Command forward passes TCP connections from inherited listening sockets to target addresses.
//
// Each argument is FD=HOST:PORT: a listening socket that the parent has bound and passed on as file descriptor FD,
// and where its connections go. HOST is looked up for each connection, with -dns by that server: the cluster's own
// DNS knows Services that did not exist when this started. A socket keeps the network namespace it was made in, so a parent on the host binds
// 127.0.0.1:0 and starts this inside the cluster's network namespace (nsenter -n): a service in there then answers on
// the host's loopback, and on nothing else.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const dialTimeout = 5 * time.Second

var dialer = net.Dialer{Timeout: dialTimeout}

func main() {
	log.SetFlags(log.LstdFlags | log.LUTC)
	dns := flag.String("dns", "", "`address:port` of the DNS server for target hosts; the system's by default")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("usage: forward [-dns ADDRESS:PORT] FD=HOST:PORT ...")
	}
	if *dns != "" {
		dialer.Resolver = &net.Resolver{
			PreferGo: true,
			Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, *dns)
			},
		}
	}
	var group sync.WaitGroup
	for _, argument := range flag.Args() {
		listener, target, err := parse(argument)
		if err != nil {
			log.Fatalf("%s: %v", argument, err)
		}
		log.Printf("%s -> %s", listener.Addr(), target)
		group.Go(func() { serve(listener, target) })
	}
	group.Wait()
}

func parse(argument string) (*net.TCPListener, string, error) {
	descriptor, target, found := strings.Cut(argument, "=")
	if !found {
		return nil, "", errors.New("want FD=HOST:PORT")
	}
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, "", err
	}
	number, err := strconv.ParseUint(descriptor, 10, 16)
	if err != nil {
		return nil, "", fmt.Errorf("file descriptor: %w", err)
	}
	file := os.NewFile(uintptr(number), argument)
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, "", err
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, "", fmt.Errorf("file descriptor %d is a %T, want a TCP listener", number, listener)
	}
	return tcp, target, nil
}

func serve(listener *net.TCPListener, target string) {
	for {
		client, err := listener.AcceptTCP()
		switch {
		case errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE):
			log.Printf("%s: %v; waiting for connections to end", listener.Addr(), err)
			time.Sleep(50 * time.Millisecond)
		case err != nil:
			log.Fatalf("%s: %v", listener.Addr(), err)
		default:
			go forward(client, target)
		}
	}
}

// forward copies both ways until both sides have ended; a half-closed connection stays open the other way.
func forward(client *net.TCPConn, target string) {
	defer client.Close()
	connection, err := dialer.Dial("tcp", target)
	if err != nil {
		log.Printf("%s: %v", target, err)
		_ = client.SetLinger(0) // The client sees a reset, not an empty answer.
		return
	}
	server := connection.(*net.TCPConn)
	defer server.Close()
	var group sync.WaitGroup
	group.Go(func() { copyHalf(server, client) })
	group.Go(func() { copyHalf(client, server) })
	group.Wait()
}

func copyHalf(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		// One direction has failed: without this the other would wait for a peer that never speaks again.
		_ = from.Close()
		_ = to.Close()
		return
	}
	_ = to.CloseWrite()
}
