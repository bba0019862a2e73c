//! What becomes of a hint when it is replayed. Pure.

use super::format::Hint;
use cluster::metadata::Metadata;
use cluster::tablets::transition::Replicas;
use model::id::HostId;

/// What to do with a hint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Write it to these replicas: the target where it still is one, and copies that are being made; else all that there are now.
    Send(Replicas),
    /// The table is gone, or was truncated since.
    Drop,
    /// It is so old that what it deletes may have been forgotten elsewhere: it must not come back.
    Expire,
}

/// What to do with a hint for a node at this time (microseconds since the epoch), by the newest metadata.
pub fn decide(hint: &Hint, target: HostId, metadata: &Metadata, now: i64) -> Fate {
    let Some(table) = metadata.table_by_id(hint.mutation.table()) else { return Fate::Drop };
    if hint.number < table.epoch {
        return Fate::Drop;
    }
    let grace = i64::from(table.schema.options.gc_grace_seconds) * 1_000_000;
    if now.saturating_sub(hint.written) > grace {
        return Fate::Expire;
    }
    let tablet = table.tablets.tablet_of(hint.mutation.decorated_key().token);
    let moving = table.tablets.moving_write_set(tablet);
    let (all, pending) = match moving {
        Some(set) => (set.replicas, set.pending),
        None => (table.tablets.replicas(tablet).into(), 0),
    };
    let Some(own) = all.iter().find(|replica| replica.host == target).copied() else { return Fate::Send(all) };
    // A copy that is being made may have been given already what the target had before this.
    let being_made = all[all.len() - pending..].iter().copied().filter(|copy| *copy != own);
    Fate::Send(std::iter::once(own).chain(being_made).collect())
}
