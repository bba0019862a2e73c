//! Checkers, named as ARCHITECTURE.md names the invariants.

use crate::workload::{Op, State, state_after};

/// How far a run of operations came before the power went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// Operations that were acknowledged.
    pub acked: usize,
    /// Operations that were begun; at most one more.
    pub attempted: usize,
}

/// `acked_writes_survive` and `no_resurrection`, for a log that syncs before it acknowledges: what is there after the restart is the
/// state after all acknowledged operations, or that and the one that was under way.
pub fn exactly_what_was_acknowledged(ops: &[Op], progress: Progress, seen: &State) -> Result<(), String> {
    let after_acked = state_after(&ops[..progress.acked]);
    let after_attempted = state_after(&ops[..progress.attempted]);
    if *seen == after_acked || *seen == after_attempted {
        return Ok(());
    }
    // A truncation or batch under way may be half done on a node of several shards; a single row may not be half there.
    Err(format!("{progress:?}, last begun {:?}\n  lost or returned: {}", ops.get(progress.acked), difference(&after_acked, seen)))
}

/// The same for a log that syncs each period: what is there is the state after some prefix of the operations, for each partition
/// (partitions may be on different shards, whose logs are synced each for itself), at least as long as `synced`.
pub fn a_prefix_of_what_was_acknowledged(ops: &[Op], synced: usize, progress: Progress, seen: &State) -> Result<(), String> {
    let of_partition = |state: &State, pk: i32| -> State {
        state.iter().filter(|((p, _), _)| *p == pk).map(|(key, v)| (*key, *v)).collect()
    };
    let prefixes: Vec<State> = (synced..=progress.attempted).map(|end| state_after(&ops[..end])).collect();
    let partitions: std::collections::BTreeSet<i32> = seen.keys().chain(prefixes.iter().flat_map(State::keys)).map(|k| k.0).collect();
    for pk in partitions {
        let own = of_partition(seen, pk);
        if !prefixes.iter().any(|state| of_partition(state, pk) == own) {
            return Err(format!("{progress:?}, synced {synced}: partition {pk} is {own:?}, the state after no prefix"));
        }
    }
    Ok(())
}

fn difference(expected: &State, seen: &State) -> String {
    let mut out = Vec::new();
    for key in expected.keys().chain(seen.keys()).collect::<std::collections::BTreeSet<_>>() {
        if expected.get(key) != seen.get(key) {
            out.push(format!("{key:?}: expected {:?}, found {:?}", expected.get(key), seen.get(key)));
        }
    }
    out.join("; ")
}
