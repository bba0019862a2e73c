//! Enumerations whose variants are stored and shown by name. Names never change.

macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name { $($(#[$inner])* $variant,)* }

        impl $name {
            /// All variants.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The stored name.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// The variant of a stored name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|known| known.name() == name)
            }
        }
    };
}

pub(crate) use named;
