package dns

import (
	"fmt"
	"log"
	"os"
	"sync"
	"testing"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/go-logr/logr/funcr"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
)

// The writers of the two loggers, as the program and the kubernetes plugin set them up.
func TestTheLoggersDoNotWaitForEachOther(t *testing.T) {
	logs.InitLogs()
	stdout := os.Stdout
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	os.Stdout = null
	defer func() { os.Stdout = stdout }()
	logToStandardOutput()
	klog.SetLogger(funcr.New(func(_, args string) { clog.Info(args) }, funcr.Options{}))
	defer klog.ClearLogger()

	var writers sync.WaitGroup
	for writer := range 4 {
		writers.Go(func() {
			for line := range 2000 {
				if writer%2 == 0 {
					klog.Info(line)
				} else {
					log.Print(fmt.Sprint(line))
				}
			}
		})
	}
	writers.Wait()
}
