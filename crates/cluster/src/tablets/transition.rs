//! The stages of a tablet's transition, and the replicas that each stage reads and writes. Pure.
//!
//! The names of the stages are stored and shown as text, so they never change.
//! `topology/migration_driver.rs` advances a tablet from stage to stage. The coordinator asks a
//! stage for its read set and its write set.

use super::TabletReplica;
use crate::metadata::TransitionDefinition;
use crate::named::named;
use model::id::TableId;
use smallvec::SmallVec;
use uuid::Uuid;

/// The replicas of one tablet.
pub type Replicas = SmallVec<[TabletReplica; 1]>;

named! {
    /// The kind of a transition.
    TransitionKind {
        /// A replica moves to another node.
        Migration = "migration",
        /// A replica moves to another shard of its node. The node hands it over as soon as reads
        /// use the new replicas, so at any stage only one of the two shards is read and written.
        IntranodeMigration = "intranode_migration",
        /// A replica is built from the others.
        Rebuild = "rebuild",
        /// A replica is built from the others, after these were repaired.
        RebuildV2 = "rebuild_v2",
        /// The replicas are repaired.
        Repair = "repair",
        /// The replicas are restored from a backup.
        Restore = "restore",
    }
}

named! {
    /// The stage of a transition.
    Stage {
        /// The transition is recorded.
        AllowWriteBothReadOld = "allow_write_both_read_old",
        /// Writes go to both sets.
        WriteBothReadOld = "write_both_read_old",
        /// The remaining replicas are repaired first.
        RebuildRepair = "rebuild_repair",
        /// Existing data is streamed to the pending replicas.
        Streaming = "streaming",
        /// The new replicas are complete, and serve reads.
        WriteBothReadNew = "write_both_read_new",
        /// The old replicas are no longer read.
        UseNew = "use_new",
        /// The leaving replica is deleted.
        Cleanup = "cleanup",
        /// The new replicas become the tablet's only ones.
        EndMigration = "end_migration",
        /// Rollback after the new set has served reads.
        WriteBothReadOldFallbackCleanup = "write_both_read_old_fallback_cleanup",
        /// Rollback: the pending replica is deleted.
        CleanupTarget = "cleanup_target",
        /// Rollback: the transition is removed.
        RevertMigration = "revert_migration",
        /// The replicas are being repaired.
        Repair = "repair",
        /// The repair or restore has ended.
        EndRepair = "end_repair",
        /// The replicas are being restored from a backup.
        Restore = "restore",
    }
}

/// The next stage, or the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another stage.
    Stage(Stage),
    /// The end: the new replicas become the tablet's replicas.
    Moved,
    /// The end: the old replicas stay.
    Forgotten,
}

/// A set of replicas during a transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// The replicas before the transition.
    Old,
    /// The replicas after the transition.
    New,
    /// The union of both.
    Both,
}

impl Stage {
    /// The next stage, or the end, once all nodes follow the stage and its work is done.
    pub fn next(self) -> Next {
        use Stage::*;
        match self {
            AllowWriteBothReadOld => Next::Stage(WriteBothReadOld),
            WriteBothReadOld | RebuildRepair => Next::Stage(Streaming),
            Streaming => Next::Stage(WriteBothReadNew),
            WriteBothReadNew => Next::Stage(UseNew),
            UseNew => Next::Stage(Cleanup),
            Cleanup => Next::Stage(EndMigration),
            EndMigration => Next::Moved,
            WriteBothReadOldFallbackCleanup => Next::Stage(CleanupTarget),
            CleanupTarget => Next::Stage(RevertMigration),
            Repair | Restore => Next::Stage(EndRepair),
            RevertMigration | EndRepair => Next::Forgotten,
        }
    }

    /// The stage that begins the rollback from this one. `None` if it is too late, or if the
    /// rollback has begun already.
    pub fn given_up(self) -> Option<Stage> {
        use Stage::*;
        match self {
            AllowWriteBothReadOld | WriteBothReadOld | RebuildRepair | Streaming => Some(CleanupTarget),
            WriteBothReadNew => Some(WriteBothReadOldFallbackCleanup),
            Repair | Restore => Some(EndRepair),
            UseNew
            | Cleanup
            | EndMigration
            | WriteBothReadOldFallbackCleanup
            | CleanupTarget
            | RevertMigration
            | EndRepair => None,
        }
    }

    /// Whether data is streamed, under a session, before the next stage may begin.
    pub fn copies(self) -> bool {
        self == Stage::Streaming
    }

    /// The set that writes go to.
    pub fn writes(self) -> Set {
        use Stage::*;
        match self {
            WriteBothReadOld | RebuildRepair | Streaming | WriteBothReadNew | WriteBothReadOldFallbackCleanup => {
                Set::Both
            }
            UseNew | Cleanup | EndMigration => Set::New,
            AllowWriteBothReadOld | CleanupTarget | RevertMigration | Repair | EndRepair | Restore => Set::Old,
        }
    }

    /// The set that reads use.
    pub fn reads(self) -> Set {
        use Stage::*;
        match self {
            WriteBothReadNew | UseNew | Cleanup | EndMigration => Set::New,
            _ => Set::Old,
        }
    }
}

/// A tablet's transition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transition {
    /// Its kind.
    pub kind: TransitionKind,
    /// The current stage.
    pub stage: Stage,
    /// The replicas after the transition.
    pub new_replicas: Replicas,
    /// The session of the streaming. Each stage that streams has a new one.
    pub session: Option<Uuid>,
}

/// The replicas that a write goes to. Each pending replica adds one to the acknowledgements that
/// the consistency level requires, so that the level holds in the old and in the new set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteSet {
    /// The replicas to write to; pending replicas last.
    pub replicas: Replicas,
    /// The number of pending replicas at the end of `replicas`.
    pub pending: usize,
}

impl Transition {
    /// The stored form.
    pub fn written(&self, table: TableId, tablet: u32) -> TransitionDefinition {
        TransitionDefinition {
            table,
            tablet,
            kind: self.kind.name().to_owned(),
            stage: self.stage.name().to_owned(),
            new_replicas: self.new_replicas.to_vec(),
            session: self.session,
        }
    }

    /// The pending replicas: the new ones that are not among the old ones.
    pub fn pending<'a>(&'a self, old: &'a [TabletReplica]) -> impl Iterator<Item = TabletReplica> + 'a {
        self.new_replicas.iter().filter(|new| !old.contains(new)).copied()
    }

    /// The replicas whose data the pending replicas need. A replica that moves is copied, so that
    /// each write has as many replicas afterwards as before. Otherwise the data of all is needed:
    /// one alone may lack what a majority has acknowledged.
    pub fn sources(&self, old: &[TabletReplica]) -> Replicas {
        let leaving: Replicas = old.iter().filter(|replica| !self.new_replicas.contains(replica)).copied().collect();
        match self.kind {
            TransitionKind::Migration | TransitionKind::IntranodeMigration if !leaving.is_empty() => leaving,
            _ => old.into(),
        }
    }

    /// The set that reads use.
    pub fn reads(&self) -> Set {
        self.stage.reads()
    }

    /// The set that writes go to.
    pub fn writes(&self) -> Set {
        match self.kind {
            TransitionKind::IntranodeMigration => self.stage.reads(),
            _ => self.stage.writes(),
        }
    }

    /// Whether a replica has the tablet at this stage, or receives it. `old`: the replicas in the
    /// tablet map.
    pub fn is_held_by(&self, replica: &TabletReplica, old: &[TabletReplica]) -> bool {
        match self.kind {
            TransitionKind::IntranodeMigration => self.read_set(old).contains(replica),
            _ => old.contains(replica) || self.new_replicas.contains(replica),
        }
    }

    /// The replicas that reads may use. `old`: the replicas in the tablet map.
    pub fn read_set<'a>(&'a self, old: &'a [TabletReplica]) -> &'a [TabletReplica] {
        match self.reads() {
            Set::New => &self.new_replicas,
            Set::Old | Set::Both => old,
        }
    }

    /// The replicas that reads used before this stage or will use after it. The data that a read
    /// returns must be in this set too. `None` if writes go to one set only.
    pub fn other_read_set(&self, old: &[TabletReplica]) -> Option<Replicas> {
        match (self.writes(), self.reads()) {
            (Set::Both, Set::New) => Some(old.into()),
            (Set::Both, _) => Some(self.new_replicas.clone()),
            _ => None,
        }
    }

    /// The replicas that writes go to.
    pub fn write_set(&self, old: &[TabletReplica]) -> WriteSet {
        let set = match self.writes() {
            Set::Old => WriteSet { replicas: old.into(), pending: 0 },
            Set::New => WriteSet { replicas: self.new_replicas.clone(), pending: 0 },
            Set::Both => {
                let mut replicas = Replicas::from_slice(old);
                replicas.extend(self.pending(old));
                WriteSet { pending: replicas.len() - old.len(), replicas }
            }
        };
        let is_written = |replica: &TabletReplica| set.replicas.contains(replica);
        debug_assert!(self.read_set(old).iter().all(is_written), "a replica that is read is written");
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::HostId;

    fn replica(host: u128) -> TabletReplica {
        TabletReplica { host: HostId(Uuid::from_u128(host)), shard: 0 }
    }

    #[test]
    fn sets_by_stage() {
        let old = [replica(1), replica(2)];
        let new: Replicas = [replica(2), replica(3)].into_iter().collect();
        let both = [replica(1), replica(2), replica(3)];
        let cases = "allow_write_both_read_old old old\n\
                     write_both_read_old both old\n\
                     rebuild_repair both old\n\
                     streaming both old\n\
                     write_both_read_new both new\n\
                     use_new new new\n\
                     cleanup new new\n\
                     end_migration new new\n\
                     write_both_read_old_fallback_cleanup both old\n\
                     cleanup_target old old\n\
                     revert_migration old old\n\
                     repair old old\n\
                     end_repair old old\n\
                     restore old old";
        for line in cases.lines() {
            let [stage, writes, reads] = line.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{line}") };
            let stage = Stage::from_name(stage).expect("a stage of this name");
            let moving =
                Transition { kind: TransitionKind::Migration, stage, new_replicas: new.clone(), session: None };
            let set = |name: &str| match name {
                "old" => &old[..],
                "new" => &new[..],
                _ => &both[..],
            };
            assert_eq!(moving.read_set(&old), set(reads), "{line}");
            let written = moving.write_set(&old);
            assert_eq!(&written.replicas[..], set(writes), "{line}");
            assert_eq!(written.pending, usize::from(writes == "both"), "{line}");
            let other = moving.other_read_set(&old);
            let expected = (writes == "both").then(|| set(if reads == "old" { "new" } else { "old" }));
            assert_eq!(other.as_deref(), expected, "{line}");
        }
        assert_eq!(Stage::ALL.len(), cases.lines().count(), "every stage is in the table");
    }

    #[test]
    fn every_way_through_the_stages_ends_and_loses_no_write() {
        let order = |set: Set| match set {
            Set::Old => 0u8,
            Set::Both => 1,
            Set::New => 2,
        };
        for &begin in Stage::ALL {
            for given_up in [false, true] {
                let back = begin.given_up().filter(|_| given_up);
                let mut stage = back.unwrap_or(begin);
                if back.is_some() {
                    assert!(order(stage.reads()) < 2, "{begin:?} is given up by reading from the old copies again");
                }
                for steps in 0.. {
                    assert!(steps < 10, "{begin:?} goes round in circles");
                    let Next::Stage(next) = stage.next() else { break };
                    // Reads must not use replicas that writes of the previous stage did not reach.
                    let reads = next.reads();
                    assert!(stage.writes() == Set::Both || stage.writes() == reads, "{stage:?} -> {next:?}");
                    assert!(order(next.writes()).abs_diff(order(stage.writes())) <= 1, "{stage:?} -> {next:?}");
                    stage = next;
                }
            }
        }
        assert_eq!((Stage::EndMigration.next(), Stage::RevertMigration.next()), (Next::Moved, Next::Forgotten));
    }

    #[test]
    fn one_shard_of_a_node_has_the_tablet_at_any_stage() {
        let other = TabletReplica { shard: 1, ..replica(1) };
        let (old, new) = ([replica(1), replica(2)], [other, replica(2)]);
        for &stage in Stage::ALL {
            let kind = TransitionKind::IntranodeMigration;
            let moving = Transition { kind, stage, new_replicas: new[..].into(), session: None };
            let (read, written) = (moving.read_set(&old), moving.write_set(&old));
            assert!(read == old || read == new, "{stage:?}");
            assert_eq!((&written.replicas[..], written.pending), (read, 0), "{stage:?}");
            assert!(moving.is_held_by(&old[0], &old) != moving.is_held_by(&other, &old), "{stage:?}");
            assert!(moving.is_held_by(&old[1], &old), "{stage:?}");
            assert_eq!(moving.other_read_set(&old), None, "{stage:?}");
            assert_eq!(moving.sources(&old).as_slice(), [old[0]]);
        }
    }

    #[test]
    fn a_replica_that_moves_is_copied() {
        let old = [replica(1), replica(2)];
        let of = |kind, new: &[TabletReplica]| {
            let moving = Transition { kind, stage: Stage::Streaming, new_replicas: new.into(), session: None };
            moving.sources(&old)
        };
        assert_eq!(of(TransitionKind::Migration, &[replica(2), replica(3)]).as_slice(), [replica(1)]);
        assert_eq!(of(TransitionKind::Rebuild, &[replica(1), replica(2), replica(3)]).as_slice(), old);
    }

    #[test]
    fn transition_names_round_trip() {
        for kind in TransitionKind::ALL {
            assert_eq!(TransitionKind::from_name(kind.name()), Some(*kind));
        }
        assert_eq!(Stage::from_name("dancing"), None);
    }
}
