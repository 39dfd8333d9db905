//! Declares an enum whose variants are words of the API and of the record.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $word:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize,
            strum::IntoStaticStr, strum::VariantArray,
        )]
        #[serde(rename_all = "snake_case")]
        #[strum(serialize_all = "snake_case", const_into_str)]
        pub enum $name { $($(#[$of])* $word),* }

        impl $name {
            pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

            pub const fn as_str(self) -> &'static str {
                self.into_str()
            }
        }
    };
}
pub(super) use words;
