//! The stages of a tablet's transition, and which copies are written to and read from in each. Pure.
//!
//! The names of the stages are stored and shown as text, so they never change. `topology/mover.rs`
//! advances a tablet from stage to stage; the coordinator only asks what a stage means for it.

use super::TabletReplica;
use crate::metadata::TransitionDefinition;
use model::id::TableId;
use smallvec::SmallVec;
use uuid::Uuid;

/// The copies of one tablet.
pub type Replicas = SmallVec<[TabletReplica; 1]>;

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name { $($(#[$inner])* $variant,)* }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Its name, as it is stored.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// From the stored name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.name() == name)
            }
        }
    };
}

named! {
    /// What kind of transition a tablet is in.
    TransitionKind {
        /// A copy moves to another node.
        Migration = "migration",
        /// A copy moves to another shard of its node.
        IntranodeMigration = "intranode_migration",
        /// A copy is made from the others.
        Rebuild = "rebuild",
        /// A copy is made from the others, after they were repaired.
        RebuildV2 = "rebuild_v2",
        /// The copies are brought together.
        Repair = "repair",
        /// The copies are filled from a backup.
        Restore = "restore",
    }
}

named! {
    /// How far a transition is.
    Stage {
        /// The transition is recorded.
        AllowWriteBothReadOld = "allow_write_both_read_old",
        /// Both sets get writes.
        WriteBothReadOld = "write_both_read_old",
        /// The copies that stay are repaired first.
        RebuildRepair = "rebuild_repair",
        /// Older data is copied.
        Streaming = "streaming",
        /// The new copies have everything.
        WriteBothReadNew = "write_both_read_new",
        /// The old copies are not read any more.
        UseNew = "use_new",
        /// The leaving copy is deleted.
        Cleanup = "cleanup",
        /// The new set becomes the only one.
        EndMigration = "end_migration",
        /// Rolling back after reads had gone to the new set.
        WriteBothReadOldFallbackCleanup = "write_both_read_old_fallback_cleanup",
        /// Rolling back: the pending copy is deleted.
        CleanupTarget = "cleanup_target",
        /// Rolling back: the transition is forgotten.
        RevertMigration = "revert_migration",
        /// The copies are brought together.
        Repair = "repair",
        /// They have been.
        EndRepair = "end_repair",
        /// They are filled from a backup.
        Restore = "restore",
    }
}

/// What comes after a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another stage.
    Stage(Stage),
    /// The end: the new copies are the tablet's.
    Moved,
    /// The end: the old copies stay.
    Forgotten,
}

/// Which of the two sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// The copies there were before.
    Old,
    /// Those that there will be.
    New,
    /// All of them.
    Both,
}

impl Stage {
    /// What comes next, once everybody follows this stage and what it is for is done.
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

    /// The stage with which a transition that is in this one is given up; none: it has gone too far, or is on its way back already.
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

    /// Whether data is copied, under a session, before the next stage may begin.
    pub fn copies(self) -> bool {
        self == Stage::Streaming
    }

    /// Where writes go.
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

    /// Where reads come from.
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
    /// How far it is.
    pub stage: Stage,
    /// The copies that there will be.
    pub new_replicas: Replicas,
    /// The session under which data is copied; it is another one for each stage that copies.
    pub session: Option<Uuid>,
}

/// Where a write goes, and how many of these copies are pending: each adds one to the acknowledgements that a level asks for, so that
/// it holds in the old and the new set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteSet {
    /// The copies to write to; the pending ones last.
    pub replicas: Replicas,
    /// How many at the end of `replicas` are pending.
    pub pending: usize,
}

impl Transition {
    /// As it is written down.
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

    /// The copies that are being made: those that were none before.
    pub fn pending<'a>(&'a self, old: &'a [TabletReplica]) -> impl Iterator<Item = TabletReplica> + 'a {
        self.new_replicas.iter().filter(|new| !old.contains(new)).copied()
    }

    /// The copies that reads may use; `old` are those of the map.
    pub fn read_set<'a>(&'a self, old: &'a [TabletReplica]) -> &'a [TabletReplica] {
        match self.stage.reads() {
            Set::New => &self.new_replicas,
            Set::Old | Set::Both => old,
        }
    }

    /// The copies that reads do not use now and will use soon, or did: what reads show must hold there as well. None: nobody reads elsewhere.
    pub fn other_read_set(&self, old: &[TabletReplica]) -> Option<Replicas> {
        match (self.stage.writes(), self.stage.reads()) {
            (Set::Both, Set::New) => Some(old.into()),
            (Set::Both, _) => Some(self.new_replicas.clone()),
            _ => None,
        }
    }

    /// The copies that writes go to.
    pub fn write_set(&self, old: &[TabletReplica]) -> WriteSet {
        match self.stage.writes() {
            Set::Old => WriteSet { replicas: old.into(), pending: 0 },
            Set::New => WriteSet { replicas: self.new_replicas.clone(), pending: 0 },
            Set::Both => {
                let mut replicas = Replicas::from_slice(old);
                replicas.extend(self.pending(old));
                WriteSet { pending: replicas.len() - old.len(), replicas }
            }
        }
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
                    // Nobody reads where writes of the stage before did not go.
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
    fn names_are_read_back() {
        for kind in TransitionKind::ALL {
            assert_eq!(TransitionKind::from_name(kind.name()), Some(*kind));
        }
        assert_eq!(Stage::from_name("dancing"), None);
    }
}
