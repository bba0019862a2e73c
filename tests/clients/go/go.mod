module messina/tests/clients/go

go 1.22

require (
	github.com/apache/cassandra-gocql-driver/v2 v2.1.2
	github.com/gocql/gocql v1.7.0
	gopkg.in/inf.v0 v0.9.1
)

require (
	github.com/golang/snappy v0.0.3 // indirect
	github.com/hailocab/go-hostpool v0.0.0-20160125115350-e80d13ce29ed // indirect
	github.com/pierrec/lz4/v4 v4.1.8 // indirect
	github.com/rogpeppe/go-internal v1.9.0 // indirect
)
