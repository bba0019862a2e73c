//! The bounds of the sketch, for any stream.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn id(token: i64) -> PartitionId {
    PartitionId { table: TableId::from_bytes([7; 16]), token: Token(token) }
}

proptest! {
    #[test]
    fn the_true_weight_is_within_the_bounds(
        stream in prop::collection::vec((0..200i64, 1..20u32), 1..3000),
        slots in 1..64usize,
    ) {
        let (mut sketch, mut truth) = (Sketch::<()>::new(slots), BTreeMap::new());
        let mut total = 0.0;
        for (token, weight) in stream {
            sketch.add(id(token), f64::from(weight));
            *truth.entry(token).or_insert(0.0) += f64::from(weight);
            total += f64::from(weight);
        }
        for slot in sketch.iter() {
            let exact = truth[&slot.id.token.0];
            prop_assert!(slot.certain() <= exact && exact <= slot.weight, "{} of {exact} to {}", slot.certain(), slot.weight);
        }
        let sum: f64 = sketch.iter().map(|slot| slot.weight).sum();
        prop_assert_eq!(sum, total, "weights are only passed on");
        for (token, exact) in truth {
            let set = sketch.set_of(id(token));
            let least = set.iter().map(|slot| slot.as_ref().map_or(0.0, |slot| slot.weight)).fold(f64::INFINITY, f64::min);
            let is_listed = set.iter().flatten().any(|slot| slot.id == id(token));
            prop_assert!(is_listed || exact <= least, "{token} had {exact}, and the smallest slot has {least}");
        }
    }

    #[test]
    fn a_partition_with_more_than_its_part_of_its_set_is_listed(others in 1..5000u32) {
        let mut sketch = Sketch::<()>::new(8);
        // One set: the hot partition has a seventh of all weight, more than an eighth.
        for n in 0..others {
            sketch.add(id(i64::from(n) + 1), 1.0);
            if n % 6 == 0 {
                sketch.add(id(0), 1.0);
            }
        }
        prop_assert!(sketch.get_mut(id(0)).is_some());
    }
}

#[test]
fn partitions_of_other_tables_have_slots_of_their_own() {
    let mut sketch = Sketch::<u32>::new(8);
    let other = PartitionId { table: TableId::from_bytes([8; 16]), ..id(1) };
    sketch.add(id(1), 2.0).value += 1;
    sketch.add(other, 3.0).value += 5;
    sketch.add(id(1), 2.0).value += 1;
    let of = |id, sketch: &mut Sketch<u32>| sketch.get_mut(id).map(|slot| (slot.weight, slot.missed, slot.value));
    assert_eq!(of(id(1), &mut sketch), Some((4.0, 0.0, 2)));
    assert_eq!(of(other, &mut sketch), Some((3.0, 0.0, 5)));
}

#[test]
fn a_new_partition_inherits_the_smallest_weight_and_no_value() {
    let mut sketch = Sketch::<u32>::new(8);
    for token in 0..8 {
        sketch.add(id(token), 10.0 + token as f64).value = 1;
    }
    let slot = sketch.add(id(100), 1.0);
    assert_eq!((slot.weight, slot.missed, slot.value, slot.certain()), (11.0, 10.0, 0, 1.0));
    assert!(sketch.get_mut(id(0)).is_none());
}

#[test]
fn faded_slots_are_freed() {
    let mut sketch = Sketch::<f64>::new(8);
    sketch.add(id(1), 100.0).value = 4.0;
    sketch.add(id(2), 0.015).value = 4.0;
    sketch.scale(0.5, |value| *value *= 0.5);
    assert_eq!(sketch.iter().map(|slot| (slot.id, slot.weight, slot.value)).collect::<Vec<_>>(), [(id(1), 50.0, 2.0)]);
}
