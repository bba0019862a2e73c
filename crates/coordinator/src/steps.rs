//! What a trace tells of a page that several nodes have: who was asked for it, who did not answer, and whose rows it has.

use super::RequestOptions;
use super::miss::Miss;
use cluster::tablets::TabletReplica;
use model::id::HostId;
use std::fmt;

/// What a replica is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Its rows, and a digest of them if others are asked for theirs.
    Rows,
    /// A digest of its rows.
    Digest,
    /// The data behind its rows.
    Data,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Rows => "rows",
            Part::Digest => "a digest",
            Part::Data => "data",
        })
    }
}

/// These were asked, the first one for rows; `kept` have read the page before.
pub(super) fn asked(replicas: &[TabletReplica], kept: &[HostId], options: &RequestOptions) {
    tell(options, || {
        let described = replicas.iter().enumerate().map(|(at, replica)| {
            let part = if at == 0 { Part::Rows } else { Part::Digest };
            let before = if kept.contains(&replica.host) { ", as for the page before" } else { "" };
            format!("{part} of node {}{before}", replica.host)
        });
        format!("Asking for {}", described.collect::<Vec<_>>().join("; "))
    });
}

/// Somebody takes too long, so another one was asked.
pub(super) fn asked_as_well(part: Part, replica: TabletReplica, options: &RequestOptions) {
    tell(options, || format!("A replica is slow: asking for {part} of node {} as well", replica.host));
}

/// Another one was asked in place of one that is out.
pub(super) fn asked_instead(part: Part, replica: TabletReplica, options: &RequestOptions) {
    tell(options, || format!("Asking for {part} of node {} instead", replica.host));
}

/// One is out.
pub(super) fn missed(replica: TabletReplica, miss: &Miss, options: &RequestOptions) {
    tell(options, || format!("Node {} did not answer: {}", replica.host, miss.why()));
}

/// The page has the rows of the first of these, and the others have the same.
pub(super) fn agreed(replicas: &[TabletReplica], options: &RequestOptions) {
    let Some((first, others)) = replicas.split_first() else { return };
    tell(options, || match others {
        [] => format!("The rows are those of node {}", first.host),
        others => format!("The rows are those of node {}; the same digest: {}", first.host, hosts(others)),
    });
}

/// The page has what these have, brought together.
pub(super) fn merged(replicas: &[TabletReplica], options: &RequestOptions) {
    tell(options, || format!("The rows are of the data of {}", hosts(replicas)));
}

fn hosts(replicas: &[TabletReplica]) -> String {
    replicas.iter().map(|replica| format!("node {}", replica.host)).collect::<Vec<_>>().join(", ")
}

fn tell(options: &RequestOptions, step: impl FnOnce() -> String) {
    if let Some(trace) = &options.context.trace {
        trace.event(step());
    }
}
