//! `messina admin decommission`, `removenode`, `excludenode`, `rebuild`, `drain`: operations on
//! nodes as members of their cluster.

use crate::Failure;
use crate::api::{self, Api, Method, query};
use clap::{Arg, ArgAction, ArgMatches, Command};
use indicatif::{ProgressBar, ProgressStyle};
use rt::time::{Duration, Instant};
use serde_json::Value;
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{self, RecvTimeoutError};

/// The path of the operation, of its progress, and of its end.
const DECOMMISSION: &str = "/storage_service/decommission";
/// How often the progress is read.
const LOOK: Duration = Duration::from_millis(500);
/// The shortest interval of progress lines, if the output is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The commands in this file.
pub fn commands() -> Vec<Command> {
    let cancel = Arg::new("cancel").long("cancel").action(ArgAction::SetTrue);
    vec![
        Command::new("decommission")
            .about("Makes the node leave its cluster: moves its tablets to other nodes, and waits until it has left")
            .arg(
                cancel.help("Cancels a decommission: the node stays, and tablets that have moved stay where they are"),
            ),
        Command::new("removenode")
            .about("Removes a node that is down from the cluster, and waits until other nodes have its replicas")
            .arg(Arg::new("node").required(true).help("Its host id or address")),
        Command::new("excludenode")
            .about("Bans nodes that are down, without waiting: their replicas are built once nodes can take them")
            .arg(Arg::new("nodes").required(true).num_args(1..).help("Their host ids or addresses")),
        Command::new("rebuild")
            .about("Reads all tables of the node again from all their replicas, after it has lost data")
            .arg(Arg::new("source-dc").help("Not supported: all replicas are read").hide(true)),
        Command::new("drain").about("Prepares a stop: closes the ports for clients, and writes memtables to sstables"),
    ]
}

/// Whether a command is in this file.
pub fn is_command(name: &str) -> bool {
    commands().iter().any(|command| command.get_name() == name)
}

/// Runs one of these commands.
pub fn run(api: &Api, name: &str, arguments: &ArgMatches, as_json: bool) -> Result<(), Failure> {
    let answer = match name {
        "drain" => api.send(Method::Post, "/storage_service/drain")?,
        "rebuild" => {
            let from = query(&[("source_dc", api::text(arguments, "source-dc"))]);
            api.send(Method::Post, &format!("/storage_service/rebuild{from}"))?
        }
        "removenode" => {
            let node = api::text(arguments, "node");
            if node.is_empty() {
                return Err(Failure::new("name the node by its host id or address"));
            }
            let path = format!("/storage_service/remove_node{}", query(&[("host_id", node)]));
            shown(api, &path, as_json, |_| true)?
        }
        "excludenode" => {
            let nodes: Vec<&str> =
                arguments.get_many::<String>("nodes").into_iter().flatten().map(String::as_str).collect();
            if nodes.iter().any(|node| node.trim().is_empty()) {
                return Err(Failure::new("name the nodes by their host ids or addresses"));
            }
            let query = query(&[("hosts", &nodes.join(","))]);
            api.send(Method::Post, &format!("/storage_service/exclude_node{query}"))?
        }
        _ if arguments.get_flag("cancel") => api.send(Method::Delete, DECOMMISSION)?,
        _ => shown(api, DECOMMISSION, as_json, |progress| progress["mode"] == "LEAVING")?,
    };
    crate::output::print_answer(&answer, as_json, |_| String::new());
    Ok(())
}

/// Sends a request, and shows its progress, which has the same path, until it is answered.
/// `counts`: whether the progress belongs to the request.
#[allow(clippy::disallowed_methods, reason = "the request blocks while its progress is read")]
fn shown(api: &Api, path: &str, is_quiet: bool, counts: impl Fn(&Value) -> bool) -> Result<Value, Failure> {
    let (sender, answered) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || sender.send(api.send(Method::Post, path)));
        let mut shown = Shown::new(is_quiet)?;
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::new("the request has ended")),
                // If the progress cannot be read, the answer to the request says why.
                Err(RecvTimeoutError::Timeout) => {
                    if let Ok(progress) = api.get(path)
                        && counts(&progress)
                    {
                        shown.update(progress["tablets"].as_u64().unwrap_or_default());
                        shown.explain(progress["waits_for"].as_str());
                    }
                }
            }
        }
    })
}

/// The progress on the terminal, or as lines.
struct Shown {
    bar: Option<ProgressBar>,
    is_quiet: bool,
    /// When the last line was printed, and the tablets in it.
    line: Option<(Instant, u64)>,
    /// The last reported reason for a lack of progress.
    reason: String,
}

impl Shown {
    fn new(is_quiet: bool) -> Result<Shown, Failure> {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} tablets moved, {eta} left");
        let style = style.map_err(|error| Failure::new(format!("cannot draw a progress bar: {error}")))?;
        let bar = (!is_quiet && stderr().is_terminal()).then(|| ProgressBar::new(0).with_style(style));
        Ok(Shown { bar, is_quiet, line: None, reason: String::new() })
    }

    fn update(&mut self, left: u64) {
        if let Some(bar) = &self.bar {
            let all = bar.length().unwrap_or_default().max(left);
            bar.set_length(all);
            bar.set_position(all - left);
        } else if !self.is_quiet && self.line.is_none_or(|(at, last)| at.elapsed() >= LINE_EVERY && last != left) {
            self.line = Some((rt::time::now(), left));
            eprintln!("{left} tablets have not moved yet");
        }
    }

    /// Says what prevents progress, once for each reason.
    fn explain(&mut self, reason: Option<&str>) {
        let reason = reason.unwrap_or_default();
        if reason == self.reason {
            return;
        }
        self.reason = reason.to_owned();
        if reason.is_empty() || self.is_quiet {
            return;
        }
        match &self.bar {
            Some(bar) => bar.println(reason),
            None => eprintln!("{reason}"),
        }
    }
}
