//! Decides what to do with a hint when it is replayed. Pure.

use super::format::Hint;
use cluster::metadata::Metadata;
use cluster::tablets::transition::Replicas;
use model::id::HostId;

/// What to do with a hint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplayOutcome {
    /// Write it to these replicas. If the target is still a replica: the target and the pending
    /// replicas of its tablet. Otherwise: all current replicas of the tablet.
    Send(Replicas),
    /// The table was dropped, or was truncated after the hint was stored: discard the hint.
    Drop,
    /// The hint is older than `gc_grace_seconds`. Discard it, and note a missed write. Other
    /// replicas may have purged tombstones that cover its data, so writing it could restore deleted
    /// data.
    Expire,
}

/// Decides what to do with a hint for a node, based on the newest metadata. `now` is in
/// microseconds since the epoch.
pub fn decide(hint: &Hint, target: HostId, metadata: &Metadata, now: i64) -> ReplayOutcome {
    let Some(table) = metadata.table_by_id(hint.mutation.table()) else { return ReplayOutcome::Drop };
    if hint.number < table.epoch {
        return ReplayOutcome::Drop;
    }
    let grace = i64::from(table.schema.options.gc_grace_seconds) * 1_000_000;
    if now.saturating_sub(hint.written) > grace {
        return ReplayOutcome::Expire;
    }
    let tablet = table.tablets.tablet_of(hint.mutation.decorated_key().token);
    let moving = table.tablets.moving_write_set(tablet);
    let (all, pending) = match moving {
        Some(set) => (set.replicas, set.pending),
        None => (table.tablets.replicas(tablet).into(), 0),
    };
    let Some(own) = all.iter().find(|replica| replica.host == target).copied() else { return ReplayOutcome::Send(all) };
    // A pending replica may already have streamed the target's data, without this write.
    let being_made = all[all.len() - pending..].iter().copied().filter(|copy| *copy != own);
    ReplayOutcome::Send(std::iter::once(own).chain(being_made).collect())
}
