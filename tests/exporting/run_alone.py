"""Runs a SavedModel as a stranger would: with tensorflow and tensorflow_text, and nothing else.

Arguments: a version's directory, a signature. Texts come as JSON on standard input, and what the
signature says of them goes out as JSON.
"""

import json
import sys


def main(directory, signature):
    sys.modules["keras_transformer"] = None  # an import of it fails

    import tensorflow as tf
    import tensorflow_text  # noqa: F401 its ops

    # tensorflow_text imports keras for layers of its own; from here on nobody can.
    for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
        sys.modules[name] = None

    model = tf.saved_model.load(directory)
    found = model.signatures[signature](text=tf.constant(json.load(sys.stdin)))
    texts = [text.decode() for text in found["text"].numpy()]
    print(json.dumps({"text": texts, "score": found["score"].numpy().tolist()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
