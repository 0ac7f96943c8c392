//! Setters for types with public fields to which more may be added: outside the crate, they are built from a default.

/// Defines a setter for each field, with the field's name.
macro_rules! setters {
    ($($field:ident: $value:ty),* $(,)?) => {
        $(
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            #[must_use]
            pub const fn $field(mut self, $field: $value) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}

/// Defines a setter for each field, with the field's name, which gives the optional field a value.
macro_rules! optional_setters {
    ($($field:ident: $value:ty),* $(,)?) => {
        $(
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            #[must_use]
            pub const fn $field(mut self, $field: $value) -> Self {
                self.$field = Some($field);
                self
            }
        )*
    };
}

pub(crate) use {optional_setters, setters};
