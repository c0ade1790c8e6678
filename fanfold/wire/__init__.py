"""Between the types of `fanfold.model` and protobuf: `x_to_proto` and `x_from_proto`, one module per proto file."""
