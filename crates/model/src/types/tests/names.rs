//! Names of types, in CQL, as classes and on the wire, both ways.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::strategy::any_type;
use crate::types::parse::parse;
use crate::types::{CqlType, Fields, Quoted, UserType, class_name, wire};

/// The user types inside `ty`, by name. A name used for two types keeps neither.
fn user_types(ty: &CqlType) -> BTreeMap<String, Option<Arc<UserType>>> {
    let found = RefCell::new(BTreeMap::new());
    ty.any(&mut |t| {
        if let CqlType::Udt(user_type) = t {
            let mut defined = UserType::clone(user_type);
            defined.frozen = false;
            let defined = Arc::new(defined);
            found
                .borrow_mut()
                .entry(user_type.name.clone())
                .and_modify(|known: &mut Option<Arc<UserType>>| {
                    if known.as_ref() != Some(&defined) {
                        *known = None;
                    }
                })
                .or_insert(Some(defined.clone()));
        }
        false
    });
    found.into_inner()
}

proptest! {
    #[test]
    fn cql_names_parse_to_the_same_type(ty in any_type()) {
        let types = user_types(&ty);
        prop_assume!(types.values().all(Option::is_some));
        let resolver = |keyspace: Option<&str>, name: &str| {
            assert_eq!(keyspace, None);
            types.get(name).cloned().flatten()
        };
        prop_assert_eq!(parse(&ty.to_string(), &resolver), Ok(ty));
    }

    #[test]
    fn class_names_parse_to_the_same_type(ty in any_type(), descending: bool) {
        let name = class_name::of(&ty);
        prop_assert_eq!(class_name::parse(&name), Ok(ty.clone()));
        let name = class_name::of_clustering(&ty, descending);
        prop_assert_eq!(class_name::parse_clustering(&name), Ok((ty.clone(), descending)));
        let key = [ty.freeze(), CqlType::Text];
        prop_assert_eq!(class_name::parse_partition_key(&class_name::of_partition_key(&key)), Ok(key.to_vec()));
    }

    #[test]
    fn type_options_round_trip(ty in any_type()) {
        let mut out = Vec::new();
        wire::write_option(&ty, &mut out);
        let mut rest = &out[..];
        prop_assert_eq!(wire::read_option(&mut rest).unwrap().freeze(), ty.freeze());
        prop_assert!(rest.is_empty());
        prop_assert!(wire::read_option(&mut &out[..out.len() - 1]).is_err());
    }

    #[test]
    fn foreign_names_do_not_panic(text in "[a-z<>,'\". ()0-9:]{0,30}") {
        let _ = parse(&text, &|_, _| None);
        let _ = class_name::parse(&text);
    }
}

fn addr(frozen: bool) -> CqlType {
    let fields = vec![("street".to_owned(), CqlType::Text), ("no".to_owned(), CqlType::Int)];
    CqlType::udt(UserType { keyspace: "ks".to_owned(), name: "addr".to_owned(), fields: fields.into(), frozen })
}

#[test]
fn cql_names() {
    let resolver = |keyspace: Option<&str>, name: &str| match (keyspace, name, addr(false)) {
        (None | Some("ks"), "addr", CqlType::Udt(user_type)) => Some(user_type),
        _ => None,
    };
    for name in [
        "int",
        "list<text>",
        "frozen<list<int>>",
        "map<text, frozen<list<int>>>",
        "frozen<map<int, frozen<set<text>>>>",
        "frozen<tuple<int, text, frozen<list<blob>>>>",
        "addr",
        "frozen<addr>",
        "list<frozen<addr>>",
        "vector<float, 3>",
        "'some.other.Type'",
        "empty",
    ] {
        assert_eq!(parse(name, &resolver).unwrap().to_string(), name);
    }
    for (other, name) in [
        ("VARCHAR", "text"),
        (" Map < Text ,FROZEN<list<int>> > ", "map<text, frozen<list<int>>>"),
        ("tuple<int,list<list<int>>>", "frozen<tuple<int, frozen<list<frozen<list<int>>>>>>"),
        ("frozen<list<list<addr>>>", "frozen<list<frozen<list<frozen<addr>>>>>"),
        ("ks.addr", "addr"),
        ("frozen<\"ks\".\"addr\">", "frozen<addr>"),
        ("'org.apache.cassandra.db.marshal.Int32Type'", "int"),
    ] {
        assert_eq!(parse(other, &resolver).unwrap().to_string(), name);
    }
    for (wrong, why) in [
        ("nosuch", "Unknown type nosuch"),
        ("ks2.addr", "Unknown type ks2.addr"),
        ("list<list<int>>", "Non-frozen collections are not allowed inside collections: list<int>"),
        ("list<addr>", "Non-frozen UDTs are not allowed inside collections: addr"),
        ("frozen<int>", "frozen<> is only allowed on collections, tuples, and user-defined types (got int)"),
        ("set<duration>", "Durations are not allowed inside sets: set<duration>"),
        ("map<duration, int>", "Durations are not allowed as map keys: map<duration, int>"),
        ("list<counter>", "Counters are not allowed inside collections: list<counter>"),
        ("list<int> x", "unexpected text at byte 10"),
        ("list<int", "unexpected text at byte 8"),
        ("vector<int, 0>", "Vectors must have a dimension"),
        ("", "unexpected text at byte 0"),
    ] {
        let error = parse(wrong, &resolver).expect_err(wrong).to_string();
        assert!(error.contains(why), "{wrong}: {error}");
    }
    let deep = format!("{}int{}", "list<".repeat(100_000), ">".repeat(100_000));
    assert!(parse(&deep, &resolver).unwrap_err().to_string().contains("nest"));
}

/// Every type that occurs in the headers of the sstable fixtures, as Cassandra and ScyllaDB spell
/// it, less the package.
#[test]
fn class_names_of_real_files() {
    let cases = [
        ("Int32Type", "int"),
        ("SimpleDateType", "date"),
        ("ShortType", "smallint"),
        ("CounterColumnType", "counter"),
        ("ListType(PUTF8Type)", "list<text>"),
        ("MapType(PUTF8Type,PInt32Type)", "map<text, int>"),
        ("FrozenType(PListType(PInt32Type))", "frozen<list<int>>"),
        ("FrozenType(PMapType(PInt32Type,PUTF8Type))", "frozen<map<int, text>>"),
        ("TupleType(PInt32Type,PUTF8Type)", "frozen<tuple<int, text>>"),
        ("MapType(PInt32Type,PFrozenType(PListType(PUTF8Type)))", "map<int, frozen<list<text>>>"),
        ("UserType(ks,706572736f6e,6e616d65:PUTF8Type,616765:PInt32Type,6d61696c:PUTF8Type)", "person"),
        ("FrozenType(PUserType(ks,61646472,737472656574:PUTF8Type,6e6f:PInt32Type))", "frozen<addr>"),
        ("VectorType(PFloatType , 3)", "vector<float, 3>"),
        ("EmptyType", "empty"),
    ];
    let package = "org.apache.cassandra.db.marshal.";
    for (class, cql) in cases {
        let full = format!("{package}{}", class.replace('P', package));
        let ty = class_name::parse(&full).unwrap();
        assert_eq!(ty.to_string(), cql);
        assert_eq!(class_name::of(&ty), full);
        assert_eq!(class_name::parse(&class.replace('P', "")).unwrap(), ty, "without the package");
    }
}

#[test]
fn class_names_read_but_not_written() {
    // Old files leave out the mark of a user type in a collection.
    let old = "MapType(Int32Type,UserType(ks,7574,61:Int32Type))";
    assert_eq!(class_name::parse(old).unwrap().to_string(), "map<int, frozen<ut>>");
    assert_eq!(class_name::parse("DateType"), Ok(CqlType::Timestamp));
    assert_eq!(class_name::parse("LexicalUUIDType"), Ok(CqlType::Uuid));
    let custom = "org.apache.cassandra.db.marshal.DynamicCompositeType(a=>BytesType,b=>UTF8Type)";
    assert_eq!(class_name::parse(custom), Ok(CqlType::Custom(custom.into())));
    assert_eq!(
        class_name::parse_partition_key("CompositeType( Int32Type , UTF8Type )"),
        Ok(vec![CqlType::Int, CqlType::Text])
    );
    assert_eq!(class_name::parse_clustering("ReversedType(UTF8Type)"), Ok((CqlType::Text, true)));
    for wrong in ["", "ListType", "ListType(", "ListType(Int32Type", "ListType(Int32Type))", "UserType(ks,zz)", "a(("] {
        assert!(class_name::parse(wrong).is_err(), "{wrong}");
    }
    assert!(class_name::parse("ListType(ReversedType(Int32Type))").is_err());
    assert!(class_name::parse(&"ListType(".repeat(100_000)).is_err());
}

#[test]
fn options_of_the_protocol() {
    let cases: [(&str, &[u8]); 7] = [
        ("ascii", &[0, 1]),
        ("timestamp", &[0, 0xb]),
        ("text", &[0, 0xd]),
        ("duration", &[0, 0x15]),
        ("frozen<list<int>>", &[0, 0x20, 0, 9]),
        ("map<int, blob>", &[0, 0x21, 0, 9, 0, 3]),
        ("tuple<int, uuid>", &[0, 0x31, 0, 2, 0, 9, 0, 0xc]),
    ];
    for (name, bytes) in cases {
        let mut out = Vec::new();
        wire::write_option(&parse(name, &|_, _| None).unwrap(), &mut out);
        assert_eq!(out, bytes, "{name}");
    }
    let mut out = Vec::new();
    wire::write_option(&addr(true), &mut out);
    assert_eq!(out, b"\x00\x30\x00\x02ks\x00\x04addr\x00\x02\x00\x06street\x00\x0d\x00\x02no\x00\x09");
}

#[test]
fn a_user_type_called_as_a_native_one_is_quoted() {
    let int = UserType { keyspace: "ks".to_owned(), name: "int".to_owned(), fields: Fields::default(), frozen: false };
    let ty = CqlType::udt(int.clone());
    assert_eq!(ty.to_string(), "\"int\"");
    assert_eq!(parse("\"int\"", &|_, _| Some(Arc::new(int.clone()))), Ok(ty));
}

#[test]
fn identifiers_are_quoted_when_they_must_be() {
    for (name, shown) in [
        ("abc_1", "abc_1"),
        ("Abc", "\"Abc\""),
        ("1a", "\"1a\""),
        ("", "\"\""),
        ("select", "\"select\""),
        ("a\"b", "\"a\"\"b\""),
        ("key", "key"),
    ] {
        assert_eq!(Quoted(name).to_string(), shown);
    }
}

#[test]
fn freezing() {
    let ty = CqlType::map(CqlType::Text, CqlType::list(addr(false)));
    assert!(ty.is_multi_cell() && ty.references_udt("ks", "addr") && !ty.references_udt("other", "addr"));
    let frozen = ty.freeze();
    assert!(frozen.is_frozen() && !frozen.any(&mut CqlType::is_multi_cell));
    let nested = ty.freeze_nested();
    assert!(nested.is_multi_cell());
    assert_eq!(nested, CqlType::map(CqlType::Text, CqlType::list(addr(false)).freeze()));
}
