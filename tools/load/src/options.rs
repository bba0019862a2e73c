//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use scylla::statement::Consistency;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Load for a CQL database. Every value is derived from its key, so every row that is read is
/// checked. The report is one JSON object on standard output.
///
/// Exit status: 0 if all is well; 1 if there is no report; 3 if rows are corrupt, missing, lost or
/// were never written; 4 if rows of the ledger could not be read.
#[derive(Parser)]
#[command(name = "messina-load", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Write random rows for --duration, or each row once with --once
    Write(Options),
    /// Read random rows for --duration, or each row once with --once
    Read(Options),
    /// Read and write random rows for --duration
    Mixed(Options),
    /// Write --partitions partitions of --rows rows
    BigpartWrite(Options),
    /// Read whole partitions page by page, for --duration or each once with --once
    BigpartRead(Options),
    /// Read the whole table as one paged query
    ScanSerial(Options),
    /// Read the whole table by token ranges in random order
    ScanParallel(Options),
    /// Write and delete rows for --duration and note in a ledger what was acknowledged
    LedgerWrite(LedgerOptions),
    /// Read the rows of a ledger and judge them
    LedgerCheck(LedgerOptions),
}

#[derive(Args, Clone)]
pub struct LedgerOptions {
    /// File of the ledger. ledger-write continues it if it exists, with its seed and value size
    #[arg(long)]
    pub ledger: PathBuf,
    /// Share of the writes to rows that are deletions
    #[arg(long, default_value_t = 0.0)]
    pub deletes: f64,
    /// Share of the writes that increment a counter, in a second table with the suffix _counters
    #[arg(long, default_value_t = 0.0)]
    pub counters: f64,
    /// Stop after so many failed requests in a row; 0 for never
    #[arg(long, default_value_t = 200)]
    pub until_error_streak: u64,
    /// Check only what the last round wrote
    #[arg(long)]
    pub last_round: bool,
    /// Name some of the keys that are wrong
    #[arg(long)]
    pub samples: bool,
    #[command(flatten)]
    pub options: Options,
}

#[derive(Args, Clone)]
pub struct Options {
    /// Nodes to connect to first, HOST or HOST:PORT
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1")]
    pub hosts: Vec<String>,
    #[arg(long, default_value = "bench")]
    pub keyspace: String,
    /// Table [default: big for large partitions, ledger for the ledger, else small]
    #[arg(long)]
    pub table: Option<String>,
    /// Replication factor of a new keyspace
    #[arg(long, default_value_t = 1)]
    pub rf: u32,
    /// Connections to each node; 0 for one to each shard
    #[arg(long, default_value_t = 4)]
    pub connections: usize,
    /// Requests in flight [default: 64; scan-serial: 1; scan-parallel: 3 x nodes x --cores]
    #[arg(long)]
    pub concurrency: Option<u64>,
    /// Cores of each node, for the default concurrency of scan-parallel
    #[arg(long, default_value_t = 2)]
    pub cores: u64,
    /// Seconds of measurement
    #[arg(long, default_value_t = 30)]
    pub duration: u64,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 0)]
    pub warmup: u64,
    /// Each row or partition once, instead of random ones for a duration
    #[arg(long)]
    pub once: bool,
    /// Requests per second (open loop); 0 for as many as possible (closed loop)
    #[arg(long, default_value_t = 0)]
    pub rate: u64,
    /// Rows of the table, or of each large partition [default: 1000000; 10000]
    #[arg(long)]
    pub rows: Option<u64>,
    /// Key of the first row
    #[arg(long, default_value_t = 0)]
    pub first_row: u64,
    /// Bytes of a value [default: 200; 10240 in large partitions]
    #[arg(long)]
    pub value_size: Option<usize>,
    /// Number of large partitions
    #[arg(long, default_value_t = 25)]
    pub partitions: u64,
    /// Rows of a page [default: 5000; 100 in large partitions]
    #[arg(long)]
    pub page_size: Option<i32>,
    /// Read large partitions from the last row to the first
    #[arg(long)]
    pub reverse: bool,
    /// Token ranges of scan-parallel [default: 100 x concurrency]
    #[arg(long)]
    pub ranges: Option<u64>,
    /// Share of reads in mixed
    #[arg(long, default_value_t = 0.5)]
    pub read_ratio: f64,
    /// Seed of values and of random choices
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    #[arg(long, value_enum, default_value_t = Level::LocalQuorum)]
    pub consistency: Level,
    /// Milliseconds after which the client gives a request up
    #[arg(long, default_value_t = 10_000)]
    pub timeout_ms: u64,
    /// Threads of this program [default: one for each CPU that it may use]
    #[arg(long)]
    pub threads: Option<usize>,
    /// Text at the end of CREATE TABLE, such as "WITH compression = {...}"
    #[arg(long, default_value = "")]
    pub table_options: String,
    /// Drop the table before a writing command creates it
    #[arg(long)]
    pub drop: bool,
    /// Processes whose CPU time and memory are reported
    #[arg(long, value_delimiter = ',')]
    pub server_pid: Vec<String>,
    /// Text for the report
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Level {
    One,
    LocalOne,
    Quorum,
    LocalQuorum,
    All,
}

impl Level {
    pub fn consistency(self) -> Consistency {
        match self {
            Level::One => Consistency::One,
            Level::LocalOne => Consistency::LocalOne,
            Level::Quorum => Consistency::Quorum,
            Level::LocalQuorum => Consistency::LocalQuorum,
            Level::All => Consistency::All,
        }
    }
}

impl Command {
    pub fn name(&self) -> &'static str {
        match self {
            Command::Write(_) => "write",
            Command::Read(_) => "read",
            Command::Mixed(_) => "mixed",
            Command::BigpartWrite(_) => "bigpart-write",
            Command::BigpartRead(_) => "bigpart-read",
            Command::ScanSerial(_) => "scan-serial",
            Command::ScanParallel(_) => "scan-parallel",
            Command::LedgerWrite(_) => "ledger-write",
            Command::LedgerCheck(_) => "ledger-check",
        }
    }

    pub fn options(&self) -> &Options {
        match self {
            Command::LedgerWrite(ledger) | Command::LedgerCheck(ledger) => &ledger.options,
            Command::Write(options)
            | Command::Read(options)
            | Command::Mixed(options)
            | Command::BigpartWrite(options)
            | Command::BigpartRead(options)
            | Command::ScanSerial(options)
            | Command::ScanParallel(options) => options,
        }
    }

    /// The options with the defaults that depend on the command.
    pub fn settings(&self) -> Settings {
        let options = self.options().clone();
        let large = matches!(self, Command::BigpartWrite(_) | Command::BigpartRead(_));
        let table = match self {
            Command::LedgerWrite(_) | Command::LedgerCheck(_) => "ledger",
            _ if large => "big",
            _ => "small",
        };
        let concurrency = match self {
            Command::ScanSerial(_) => 1,
            Command::ScanParallel(_) => options.hosts.len() as u64 * options.cores * 3,
            _ => 64,
        };
        let whole = matches!(
            self,
            Command::BigpartWrite(_) | Command::ScanSerial(_) | Command::ScanParallel(_) | Command::LedgerCheck(_)
        );
        Settings {
            table: format!("{}.{}", options.keyspace, options.table.as_deref().unwrap_or(table)),
            concurrency: options.concurrency.unwrap_or(concurrency).max(1),
            rows: options.rows.unwrap_or(if large { 10_000 } else { 1_000_000 }),
            value_size: options.value_size.unwrap_or(if large { 10_240 } else { 200 }),
            page_size: options.page_size.unwrap_or(if large { 100 } else { 5000 }),
            timed: !(options.once || whole),
            options,
        }
    }
}

/// The settings of a run.
pub struct Settings {
    /// Keyspace and table.
    pub table: String,
    pub concurrency: u64,
    pub rows: u64,
    pub value_size: usize,
    pub page_size: i32,
    /// The run ends after its duration, not when all is done.
    pub timed: bool,
    pub options: Options,
}

impl Settings {
    /// What a report says about the run.
    pub fn describe(&self) -> Value {
        let Options { hosts, rf, connections, threads, rate, duration, warmup, first_row, partitions, .. } =
            &self.options;
        let Options { reverse, read_ratio, seed, table_options, consistency, timeout_ms, .. } = &self.options;
        let level = consistency.to_possible_value().map(|value| value.get_name().to_owned());
        json!({
            "hosts": hosts, "table": self.table, "rf": rf, "consistency": level, "connections": connections,
            "concurrency": self.concurrency, "threads": threads, "rate": rate, "duration_s": duration,
            "warmup_s": warmup, "timed": self.timed, "rows": self.rows, "first_row": first_row,
            "value_size": self.value_size, "partitions": partitions, "page_size": self.page_size,
            "reverse": reverse, "read_ratio": read_ratio, "seed": seed, "timeout_ms": timeout_ms,
            "table_options": table_options,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(words: &str) -> Settings {
        Cli::try_parse_from(std::iter::once("messina-load").chain(words.split(' '))).unwrap().command.settings()
    }

    #[test]
    fn defaults_depend_on_the_command() {
        let small = settings("read --hosts a,b");
        assert_eq!((small.table.as_str(), small.rows, small.value_size), ("bench.small", 1_000_000, 200));
        assert_eq!((small.concurrency, small.page_size, small.timed), (64, 5000, true));
        let big = settings("bigpart-read --once --keyspace k");
        assert_eq!((big.table.as_str(), big.rows, big.value_size, big.timed), ("k.big", 10_000, 10_240, false));
        assert_eq!(settings("scan-parallel --hosts a,b --cores 4").concurrency, 24);
        assert_eq!(settings("scan-serial").concurrency, 1);
        let ledger = settings("ledger-write --ledger /l --rows 7");
        assert_eq!((ledger.table.as_str(), ledger.rows, ledger.timed), ("bench.ledger", 7, true));
        assert!(!settings("ledger-check --ledger /l").timed);
    }
}
