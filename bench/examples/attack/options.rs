//! The command line.

use std::time::Duration;

/// What the requests do.
#[derive(Clone, Copy, PartialEq)]
pub enum Operation {
    Read,
    Write,
}

/// The nodes and shards to which requests are sent.
#[derive(Clone, Copy, PartialEq)]
pub enum Route {
    /// All, whatever they own.
    Any,
    /// For each key, the shards that own it: as drivers that know tablets.
    Owner,
}

/// A part of the load.
pub struct Phase {
    /// Requests per second; 0 in a closed loop.
    pub rate: u64,
    pub span: Duration,
}

pub struct Options {
    pub hosts: Vec<String>,
    /// Keyspace and table.
    pub table: String,
    pub operation: Operation,
    /// The number of the consistency level.
    pub level: u16,
    pub first: i64,
    pub keys: u64,
    /// The exponent of a Zipf distribution of the keys; 0 for a uniform one.
    pub zipf: f64,
    /// Bytes of a value that is written.
    pub value: usize,
    /// Requests in flight in a closed loop.
    pub flight: usize,
    pub plan: Vec<Phase>,
    /// Each key once, in a closed loop.
    pub once: bool,
    /// Connections to each host.
    pub connections: usize,
    pub route: Route,
    /// When to start, in milliseconds since 1970.
    pub at: Option<u64>,
}

fn parse<T: std::str::FromStr>(name: &str, text: &str) -> T {
    text.parse().unwrap_or_else(|_| panic!("{name}={text}: not understood"))
}

fn plan(text: &str) -> Vec<Phase> {
    let phase = |part: &str| {
        let (rate, seconds) = part.split_once(':').unwrap_or_else(|| panic!("plan: {part}: no RATE:SECONDS"));
        let seconds: f64 = parse("plan", seconds);
        Phase { rate: parse("plan", rate), span: Duration::from_secs_f64(seconds) }
    };
    let plan: Vec<Phase> = text.split(',').map(phase).collect();
    let closed = plan.iter().filter(|phase| phase.rate == 0).count();
    assert!(closed == 0 || closed == plan.len(), "plan: the loop is closed in all phases, or in none");
    plan
}

impl Options {
    /// # Panics
    ///
    /// If the arguments are not understood.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Options {
        let mut word = || arguments.next().expect("attack HOSTS TABLE [NAME=VALUE]...");
        let hosts = word().split(',').map(str::to_owned).collect();
        let mut options = Options {
            hosts,
            table: word(),
            operation: Operation::Read,
            level: 1,
            first: 0,
            keys: 1,
            zipf: 0.0,
            value: 200,
            flight: 64,
            plan: plan("0:10"),
            once: false,
            connections: 4,
            route: Route::Any,
            at: None,
        };
        for argument in arguments {
            let (name, value) = argument.split_once('=').unwrap_or_else(|| panic!("{argument}: no NAME=VALUE"));
            match (name, value) {
                ("op", "read") => options.operation = Operation::Read,
                ("op", "write") => options.operation = Operation::Write,
                ("level", "one") => options.level = 1,
                ("level", "quorum") => options.level = 4,
                ("level", "all") => options.level = 5,
                ("first", _) => options.first = parse(name, value),
                ("keys", _) => options.keys = parse(name, value),
                ("zipf", _) => options.zipf = parse(name, value),
                ("value", _) => options.value = parse(name, value),
                ("flight", _) => options.flight = parse(name, value),
                ("plan", _) => options.plan = plan(value),
                ("once", _) => options.once = parse(name, value),
                ("connections", _) => options.connections = parse(name, value),
                ("route", "any") => options.route = Route::Any,
                ("route", "owner") => options.route = Route::Owner,
                ("at", _) => options.at = Some(parse(name, value)),
                _ => panic!("{argument}: not understood"),
            }
        }
        assert!(options.keys > 0 && options.connections > 0 && options.flight > 0, "nothing to do");
        options
    }

    /// Whether a request is sent as soon as another one is answered.
    pub fn is_closed(&self) -> bool {
        self.plan[0].rate == 0
    }

    /// The statement to prepare for reads.
    pub fn select(&self) -> String {
        format!("SELECT v FROM {} WHERE pk = ?", self.table)
    }

    /// The statement to prepare.
    pub fn statement(&self) -> String {
        match self.operation {
            Operation::Read => self.select(),
            Operation::Write => format!("INSERT INTO {} (pk, v) VALUES (?, ?)", self.table),
        }
    }
}
