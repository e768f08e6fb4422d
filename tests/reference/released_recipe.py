"""A reimplementation of the released pairs and masks with Python lists.

The module reproduces the behavior of `create_pretraining_data.py` in
google-research/albert (`create_instances_from_document`, `truncate_seq_pair`,
`create_masked_lm_predictions`), one document at a time, for comparison with the
package's arrays. A document is a list of sentences, and a sentence is a list of
integers.
"""


def truncate(a, b, room, rng):
    """Remove tokens from random ends of the longer list until both fit."""
    while len(a) + len(b) > room:
        longer = a if len(a) > len(b) else b
        longer.pop(0 if rng.random() < 0.5 else -1)


def random_follower(documents, own, wanted, rng):
    """Return tokens from another document, starting at a random sentence.

    If ten draws find no other document, the tokens are from the same document.
    """
    for _ in range(10):
        other = rng.randrange(len(documents))
        if other != own:
            break
    tokens = []
    for sentence in documents[other][rng.randrange(len(documents[other])) :]:
        tokens += sentence
        if len(tokens) >= wanted:
            break
    return tokens


def pairs_of(documents, own, room, short_seq_prob, next_sentence, rng):
    """For each pair, yield A, B and a label, which is 1 if B does not follow A.

    Args:
      documents: all documents.
      own: the index of the document that is divided into pairs.
      room: the maximum number of tokens in A and B together.
      short_seq_prob: the probability that the document has shorter pairs.
      next_sentence: whether half of the pairs have a random B. Otherwise, A and
        B are swapped in half of the pairs. In both cases, a pair that has only
        one sentence gets a random B.
      rng: an instance of `random.Random`.
    """
    document, target = documents[own], room
    if rng.random() < short_seq_prob:
        target = rng.randint(2, room)
    chunk, i = [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a, b = sum(chunk[:cut], []), sum(chunk[cut:], [])
            label = 0
            if len(chunk) == 1 or (next_sentence and rng.random() < 0.5):
                b = random_follower(documents, own, target - len(a), rng)
                i -= len(chunk) - cut
                label = 1
            elif not next_sentence and rng.random() < 0.5:
                a, b, label = b, a, 1
            truncate(a, b, room, rng)
            yield a, b, label
            chunk = []
        i += 1


def masks_of(starts, special, budget, longest, rng):
    """Return the masked positions of one example, in order.

    Args:
      starts: for each token, whether its piece begins a word.
      special: for each token, whether it is [CLS] or [SEP].
      budget: the number of tokens to mask.
      longest: the maximum length of an n-gram in words.
      rng: an instance of `random.Random`.
    """
    words = []
    for i, start in enumerate(starts):
        if not special[i]:
            if words and not start:
                words[-1].append(i)
            else:
                words.append([i])
    visits = list(range(len(words)))
    rng.shuffle(visits)
    covered = set()
    for first in visits:
        if len(covered) >= budget:
            break
        lengths = range(1, longest + 1)
        (n,) = rng.choices(lengths, [1 / n for n in lengths])
        span = sum(words[first : first + n], [])
        while n > 1 and len(covered) + len(span) > budget:
            n -= 1
            span = sum(words[first : first + n], [])
        if len(covered) + len(span) > budget or covered & set(span):
            continue
        covered |= set(span)
    return sorted(covered)
