import pickle


class Arena:
    def write(self, item):
        return pickle.dumps(item, 5)

    def free(self, handle):
        pass


def read(handle):
    return pickle.loads(handle)
