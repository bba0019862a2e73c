//! Limits on the size of a type, counted as it is written out: a user type counts with its contents
//! wherever it is used.
//!
//! The header of an sstable and the metadata of a result have types written out. A user type with
//! four fields of another one, nested 15 times, would be 4^15 types there. DDL refuses what exceeds
//! these limits. So every walk over the type of a table or user type is short, and whatever is
//! declared can be stored, read and sent. Definitions from before the limits are reduced to them
//! (`parse::parse_stored`), and so are types in the headers of files (`class_name`).

use super::{CqlType, ValueError, class_name};
use std::fmt::Display;

/// The deepest nesting of types; `list<int>` is two deep. `frozen` does not count.
pub const MAX_TYPE_DEPTH: usize = 32;
/// The most types that one type may consist of, itself included.
pub const MAX_TYPE_NODES: usize = 4096;
/// The most types that the columns of a table may consist of together.
pub const MAX_TABLE_NODES: usize = 1 << 16;
/// The longest class name in the native protocol, in bytes. Vectors are sent by class name.
pub const MAX_SENT_CLASS_NAME: usize = u16::MAX as usize;

/// The size of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Its depth.
    pub depth: usize,
    /// The number of types that it consists of.
    pub nodes: usize,
}

impl Extent {
    /// The size of `ty`. The walk ends early in a type beyond the limits, so its time is bounded
    /// for any type. The result is then also beyond the limits, but not exact.
    pub fn of(ty: &CqlType) -> Extent {
        let mut extent = Extent::default();
        extent.add(ty, 1);
        extent
    }

    fn add(&mut self, ty: &CqlType, depth: usize) {
        self.depth = self.depth.max(depth);
        self.nodes += 1;
        let mut add = |ty: &CqlType| {
            if self.is_within() {
                self.add(ty, depth + 1);
            }
        };
        match ty {
            CqlType::List { elem, .. } | CqlType::Set { elem, .. } | CqlType::Vector { elem, .. } => add(elem),
            CqlType::Map { key, value, .. } => {
                add(key);
                add(value);
            }
            CqlType::Tuple(fields) => fields.iter().for_each(add),
            CqlType::Udt(user_type) => user_type.fields.iter().for_each(|(_, ty)| add(ty)),
            _ => {}
        }
    }

    /// Whether it is within the limits.
    pub fn is_within(&self) -> bool {
        self.depth <= MAX_TYPE_DEPTH && self.nodes <= MAX_TYPE_NODES
    }
}

/// An error for a type beyond the limits, which the message calls `what`.
pub fn check(ty: &CqlType, what: impl Display) -> Result<Extent, ValueError> {
    let extent = Extent::of(ty);
    if extent.depth > MAX_TYPE_DEPTH {
        return Err(too_deep(what));
    }
    if extent.nodes > MAX_TYPE_NODES {
        return Err(too_many(what));
    }
    let is_too_long =
        |ty: &CqlType| matches!(ty, CqlType::Vector { .. }) && class_name::of(ty).len() > MAX_SENT_CLASS_NAME;
    if ty.any(&mut |ty| is_too_long(ty)) {
        return Err(ValueError::new(format!(
            "{what} has a vector whose elements' type takes more than {MAX_SENT_CLASS_NAME} bytes written out"
        )));
    }
    Ok(extent)
}

#[cold]
pub(super) fn too_deep(what: impl Display) -> ValueError {
    ValueError::new(format!("{what} nests types more than {MAX_TYPE_DEPTH} deep"))
}

/// The error for too many types in `what`.
#[cold]
pub fn too_many(what: impl Display) -> ValueError {
    ValueError::new(format!(
        "{what} consists of more than {MAX_TYPE_NODES} types, counting the types inside user types wherever they are used"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::parse::{self, Room};
    use crate::types::{Fields, UserType};
    use std::collections::BTreeMap;
    use std::sync::Arc;

    fn user_type(name: &str, fields: Vec<CqlType>) -> CqlType {
        let fields = fields.into_iter().enumerate().map(|(i, ty)| (format!("f{i}"), ty)).collect();
        CqlType::udt(UserType { keyspace: "ks".into(), name: name.into(), fields, frozen: true })
    }

    /// A type of `levels` levels with `width` fields of the level below.
    fn tower(levels: usize, width: usize) -> CqlType {
        (1..levels).fold(CqlType::Int, |below, level| user_type(&format!("t{level}"), vec![below; width]))
    }

    #[test]
    fn a_type_is_measured_without_being_written_out() {
        assert_eq!(Extent::of(&CqlType::Int), Extent { depth: 1, nodes: 1 });
        assert_eq!(
            Extent::of(&CqlType::map(CqlType::Int, CqlType::list(CqlType::Text))),
            Extent { depth: 3, nodes: 4 }
        );
        assert_eq!(Extent::of(&tower(4, 3)), Extent { depth: 4, nodes: 1 + 3 + 9 + 27 });
        assert!(check(&tower(MAX_TYPE_DEPTH, 1), "it").is_ok());
        let deep = check(&tower(MAX_TYPE_DEPTH + 1, 1), "it").unwrap_err().to_string();
        assert_eq!(deep, "it nests types more than 32 deep");
        let many = check(&tower(20, 4), "it").unwrap_err().to_string();
        assert!(many.starts_with("it consists of more than 4096 types"), "{many}");
        let long = CqlType::vector(CqlType::tuple(vec![tower(7, 3); 2]), 2);
        assert!(check(&long, "it").unwrap_err().to_string().contains("vector"), "{:?}", Extent::of(&long));
    }

    #[test]
    fn types_within_the_limits_round_trip() {
        let both_limits =
            user_type("wide", vec![tower(MAX_TYPE_DEPTH - 1, 1), CqlType::tuple(vec![CqlType::Int; 4000])]);
        for ty in [tower(MAX_TYPE_DEPTH, 1), tower(6, 4), both_limits] {
            assert!(check(&ty, "it").is_ok());
            assert_eq!(class_name::parse(&class_name::of(&ty)), Ok(ty.clone()));
            let class = class_name::of_clustering(&ty, true);
            assert_eq!(class_name::parse_clustering(&class), Ok((ty.clone(), true)));
            let mut option = Vec::new();
            crate::types::wire::write_option(&ty, &mut option);
            assert_eq!(crate::types::wire::read_option(&mut &option[..]).map(|ty| ty.freeze()), Ok(ty));
        }
        // Written as by Cassandra 3, with FrozenType around every level.
        let (open, close) = ("FrozenType(ListType(".repeat(MAX_TYPE_DEPTH - 1), "))".repeat(MAX_TYPE_DEPTH - 1));
        let parsed = class_name::parse(&format!("{open}Int32Type{close}")).unwrap();
        assert_eq!(Extent::of(&parsed).depth, MAX_TYPE_DEPTH);
    }

    #[test]
    fn types_beyond_the_limits_in_a_file_are_opaque() {
        for ty in [tower(70, 1), tower(9, 4)] {
            let parsed = class_name::parse(&class_name::of(&ty)).unwrap();
            let extent = Extent::of(&parsed);
            assert!(extent.depth <= MAX_TYPE_DEPTH, "{extent:?}");
            assert!(parsed.any(&mut |ty| matches!(ty, CqlType::Custom(_))));
            assert!(matches!(parsed, CqlType::Udt(_)), "the outermost type is what it was");
        }
    }

    #[test]
    fn new_types_beyond_the_limits_are_refused_and_stored_ones_cut() {
        let mut types: BTreeMap<String, Arc<UserType>> = BTreeMap::new();
        let (mut refused, mut cut) = (0, 0);
        for level in 0..40 {
            let below = if level == 0 { "int".to_owned() } else { format!("frozen<t{}>", level - 1) };
            let resolver = |_: Option<&str>, name: &str| types.get(name).cloned();
            let mut room = Room::of_user_type();
            let fields: Fields =
                (0..4).map(|i| (format!("f{i}"), parse::parse_stored(&below, &resolver, &mut room).unwrap())).collect();
            refused +=
                u32::from(parse::parse(&format!("tuple<{below}, {below}, {below}, {below}>"), &resolver).is_err());
            cut += u32::from(fields.iter().any(|(_, ty)| *ty == CqlType::Blob));
            let name = format!("t{level}");
            let made = UserType { keyspace: "ks".into(), name: name.clone(), fields, frozen: false };
            let (ty, mut nodes) = (CqlType::udt(made.clone()), 0);
            ty.any(&mut |_| {
                nodes += 1;
                false
            });
            assert!(nodes <= MAX_TYPE_NODES + 4 && Extent::of(&ty).depth <= MAX_TYPE_DEPTH, "{name}: {nodes}");
            types.insert(name, Arc::new(made));
        }
        assert!(refused > 0 && cut > 0);
    }
}
