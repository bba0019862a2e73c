//! Trace events of a read of several replicas: the replicas that were asked, the failed replicas,
//! and the sources of the page's rows.

use super::RequestOptions;
use super::replica_failure::ReplicaFailure;
use cluster::tablets::TabletReplica;
use model::id::HostId;
use std::fmt;

/// The requested data: rows, a digest, or fragments for reconciliation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadKind {
    /// Rows, with their digest if other replicas are asked for digests.
    Rows,
    /// The digest of its rows.
    Digest,
    /// The fragments behind its rows, for reconciliation.
    Fragments,
}

impl fmt::Display for ReadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadKind::Rows => "rows",
            ReadKind::Digest => "a digest",
            ReadKind::Fragments => "data",
        })
    }
}

/// The replicas that are asked first, the first of them for rows. `kept`: nodes that read the
/// previous page.
pub(super) fn asked(replicas: &[TabletReplica], kept: &[HostId], options: &RequestOptions) {
    record(options, || {
        let described = replicas.iter().enumerate().map(|(at, replica)| {
            let kind = if at == 0 { ReadKind::Rows } else { ReadKind::Digest };
            let before = if kept.contains(&replica.host) { ", as for the page before" } else { "" };
            format!("{kind} of node {}{before}", replica.host)
        });
        format!("Asking for {}", described.collect::<Vec<_>>().join("; "))
    });
}

/// A replica is slow, so another one is asked too.
pub(super) fn asked_speculatively(kind: ReadKind, replica: TabletReplica, options: &RequestOptions) {
    record(options, || format!("A replica is slow: asking for {kind} of node {} as well", replica.host));
}

/// A replica is slow, but no other one is asked, because this shard is overloaded.
pub(super) fn not_asked_speculatively(options: &RequestOptions) {
    record(options, || "A replica is slow: no other one is asked, because this shard is overloaded".to_owned());
}

/// Another replica is asked in place of a failed replica.
pub(super) fn asked_instead(kind: ReadKind, replica: TabletReplica, options: &RequestOptions) {
    record(options, || format!("Asking for {kind} of node {} instead", replica.host));
}

/// A replica is asked once more.
pub(super) fn asked_again(kind: ReadKind, replica: TabletReplica, options: &RequestOptions) {
    record(options, || format!("Asking for {kind} of node {} once more", replica.host));
}

/// A replica failed.
pub(super) fn failed(replica: TabletReplica, failure: &ReplicaFailure, options: &RequestOptions) {
    record(options, || format!("Node {} did not answer: {}", replica.host, failure.why()));
}

/// The page has the rows of the first replica; the others have the same digest.
pub(super) fn agreed(replicas: &[TabletReplica], options: &RequestOptions) {
    let Some((first, others)) = replicas.split_first() else { return };
    record(options, || match others {
        [] => format!("The rows are from node {}", first.host),
        others => format!("The rows are from node {}; the same digest: {}", first.host, hosts(others)),
    });
}

/// The page is built from the merged data of these replicas.
pub(super) fn merged(replicas: &[TabletReplica], options: &RequestOptions) {
    record(options, || format!("The rows are merged from {}", hosts(replicas)));
}

fn hosts(replicas: &[TabletReplica]) -> String {
    replicas.iter().map(|replica| format!("node {}", replica.host)).collect::<Vec<_>>().join(", ")
}

fn record(options: &RequestOptions, step: impl FnOnce() -> String) {
    if let Some(trace) = &options.context.trace {
        trace.event(step());
    }
}
